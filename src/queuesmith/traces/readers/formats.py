"""Logs that a table of field names describes: one request per object or row.

A field is a way of keys with dots (`queuesmith.traces.columns.jsonl.pick`); ``a + b`` adds
what is there, and ``*`` in the last key all that match. Of several, the first that leads to
a value is taken. `queuesmith.traces.readers.format_reader` reads them.

References
----------
SGLang: ``RequestLogger`` and ``FileRequestMetricsExporter`` in python/sglang/srt/managers (0.5).
https://docs.sglang.ai/advanced_features/server_arguments.html
inference-perf: ``per_request_lifecycle_metrics.json``, ReportFile in inference_perf/reportgen.
https://github.com/kubernetes-sigs/inference-perf, Apache-2.0.
BLIS: TraceV2 in sim/workload. https://github.com/inference-sim/inference-sim, Apache-2.0.
Langfuse: observations, as exported and as the API gives them. https://langfuse.com/docs/data-model
Amazon Bedrock: "Monitor model invocation using CloudWatch Logs and Amazon S3".
https://docs.aws.amazon.com/bedrock/latest/userguide/model-invocation-logging.html
Kong: "AI Gateway audit log reference". https://developer.konghq.com/ai-gateway/ai-audit-log-reference/
Dynamo: ``dynamo.agent.trace.v1``. https://github.com/ai-dynamo/dynamo, Apache-2.0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from queuesmith.traces.columns.records import LOAD_GENERATOR

_FAILED = "failed request"


def _is_there(value: Any) -> bool:
    return value not in (None, "", False)


def _is_not(*usual: str) -> Callable[[Any], bool]:
    return lambda value: value is not None and str(value).lower() not in usual


def _is_error_status(value: Any) -> bool:
    return str(value)[:1] in ("4", "5")


@dataclass(frozen=True)
class Format:
    """How one tool writes requests.

    Attributes
    ----------
    name : str
        For the origin.
    tool : str
        For messages.
    known_by : tuple of tuple of str
        Fields that tell it; those of one group must all be there.
    fields : mapping of str to tuple of str
        Our column's name to the fields that hold it, best first.
    lacks : str
        What writes a field that is missing.
    units : mapping of str to str
        Of fields whose name does not tell; durations are in seconds when left out.
    left_out : tuple
        Reason, field, and which of its values leave a record out.
    own_unit : str, optional
        Of instants that are plain numbers.
    block_size : str, optional
        The field that holds the tokens of a hashed block.
    notes : tuple of str
    """

    name: str
    tool: str
    known_by: tuple[tuple[str, ...], ...]
    fields: Mapping[str, tuple[str, ...]]
    lacks: str
    units: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[tuple[str, str, Callable[[Any], bool]], ...] = ()
    own_unit: str | None = None
    block_size: str | None = None
    notes: tuple[str, ...] = ()


#: Plug-ins of Kong that serve models, as its logs call them.
_KONG = ("proxy", "ai-proxy", "ai-proxy-advanced")

FORMATS = (
    Format(
        name="sglang_log",
        tool="SGLang log",
        known_by=(("event", "rid", "obj"), ("event", "rid", "out.meta_info")),
        fields={
            "arrival_time": ("out.meta_info.request_received_ts",),
            "prompt_len": ("out.meta_info.prompt_tokens",),
            "output_len": ("out.meta_info.completion_tokens",),
            "max_tokens": ("obj.sampling_params.max_new_tokens",),
            "e2el": ("out.meta_info.e2e_latency",),
            "queued_time": ("out.meta_info.queue_time",),
        },
        left_out=(
            ("event that is no finished request", "event", _is_not("request.finished")),
            ("aborted request", "out.meta_info.finish_reason.type", _is_not("stop", "length")),
        ),
        lacks="log finished requests with an SGLang that writes request_received_ts, with "
        "--log-requests --log-requests-format json",
    ),
    Format(
        name="sglang_metrics",
        tool="SGLang export of request metrics",
        known_by=(("request_parameters", "prompt_tokens", "completion_tokens", "e2e_latency"),),
        fields={
            "arrival_time": ("request_received_ts",),
            "prompt_len": ("prompt_tokens",),
            "output_len": ("completion_tokens",),
            "max_tokens": ("request_parameters.sampling_params.max_new_tokens",),
            "e2el": ("e2e_latency",),
            "queued_time": ("queue_time",),
        },
        left_out=(("aborted request", "finish_reason.type", _is_not("stop", "length")),),
        lacks="use an SGLang that writes request_received_ts",
    ),
    Format(
        name="inference_perf",
        tool="report of inference-perf",
        known_by=(
            ("start_time", "end_time", "info.response_metrics"),
            ("start_time", "end_time", "info.output_token_times"),
        ),
        fields={
            "arrival_time": ("start_time",),
            "prompt_len": (
                "info.response_metrics.server_usage.prompt_tokens",
                "info.input_tokens",
                "info.request_metrics.text.input_tokens",
            ),
            "output_len": (
                "info.response_metrics.server_usage.completion_tokens",
                "info.response_metrics.output_tokens",
                "info.output_tokens",
            ),
            "first_token_ts": (
                "info.response_metrics.output_token_times.0",
                "info.output_token_times.0",
            ),
            "last_token_ts": ("end_time",),
        },
        left_out=((_FAILED, "error", _is_there),),
        own_unit="s",
        lacks="let inference-perf report each request (report.request_lifecycle.per_request)",
        notes=(LOAD_GENERATOR,),
    ),
    Format(
        name="blis",
        tool="BLIS trace",
        known_by=(
            ("arrival_time_us", "first_chunk_time_us", "last_chunk_time_us", "input_tokens"),
        ),
        fields={
            "arrival_time": ("arrival_time_us",),
            "prompt_len": ("input_tokens",),
            "output_len": ("output_tokens",),
            "client": ("client_id", "tenant_id"),
            "session": ("session_id",),
            "turn": ("round_index",),
            "first_token_ts": ("first_chunk_time_us",),
            "last_token_ts": ("last_chunk_time_us",),
            "status": ("status",),
        },
        left_out=((_FAILED, "status", _is_not("ok", "")),),
        lacks="export the trace with its tokens and times",
    ),
    Format(
        name="langfuse",
        tool="export of Langfuse observations",
        known_by=(
            ("type", "trace_id", "start_time", "usage_details"),
            ("type", "traceId", "startTime", "usageDetails"),
            ("type", "traceId", "startTime", "usage.input"),
        ),
        fields={
            "arrival_time": ("start_time", "startTime"),
            # Cached parts of the input are counted beside it.
            "prompt_len": ("usage_details.*input*", "usageDetails.*input*", "usage.input"),
            "output_len": ("usage_details.*output*", "usageDetails.*output*", "usage.output"),
            "client": ("user_id", "userId"),
            "session": ("session_id", "sessionId"),
            "first_token_ts": ("completion_start_time", "completionStartTime"),
            "last_token_ts": ("end_time", "endTime"),
        },
        left_out=(
            ("observation that is no generation", "type", _is_not("generation")),
            ("failed generation", "level", lambda value: str(value).lower() == "error"),
        ),
        lacks="let the integration report usage of its generations",
    ),
    Format(
        name="bedrock",
        tool="Amazon Bedrock invocation log",
        known_by=(
            ("schemaType", "modelId", "input.inputTokenCount"),
            ("schemaType", "modelId", "operation", "input"),
        ),
        fields={
            "arrival_time": ("timestamp",),
            "prompt_len": (
                "input.inputTokenCount + input.cacheReadInputTokenCount "
                "+ input.cacheWriteInputTokenCount",
                "output.outputBodyJson.usage.inputTokens",
            ),
            "output_len": (
                "output.outputTokenCount",
                "output.outputBodyJson.usage.outputTokens",
            ),
            "client": ("identity.arn",),
            "max_tokens": ("input.inputBodyJson.inferenceConfig.maxTokens",),
            "ttft": ("output.outputBodyJson.-1.amazon-bedrock-invocationMetrics.firstByteLatency",),
            "e2el": (
                "output.outputBodyJson.metrics.latencyMs",
                "output.outputBodyJson.-1.amazon-bedrock-invocationMetrics.invocationLatency",
                "output.outputBodyJson.-1.metadata.metrics.latencyMs",
            ),
        },
        units={"ttft": "ms", "e2el": "ms"},
        left_out=((_FAILED, "errorCode", _is_there),),
        lacks="log text models, whose invocations have inputTokenCount and outputTokenCount",
        notes=("Bedrock logs whole seconds: shorter gaps are not known",),
    ),
    Format(
        name="kong",
        tool="Kong AI Gateway log",
        known_by=(
            ("started_at", "ai.proxy.usage"),
            ("started_at", "ai.ai-proxy.usage"),
            ("started_at", "ai.ai-proxy-advanced.usage"),
        ),
        fields={
            ours: tuple(f"ai.{plugin}.{name}" for plugin in _KONG)
            for ours, name in {
                "prompt_len": "usage.prompt_tokens",
                "output_len": "usage.completion_tokens",
                "ttft": "usage.time_to_first_token",
                "e2el": "meta.llm_latency",
            }.items()
        }
        | {
            "arrival_time": ("started_at",),
            "client": ("consumer.id", "consumer.username", "authenticated_entity.id"),
        },
        units={"arrival_time": "ms", "ttft": "ms", "e2el": "ms"},
        left_out=(("failed request (status 4xx or 5xx)", "response.status", _is_error_status),),
        lacks="set logging.log_statistics of the plugin, so that Kong counts tokens",
    ),
    Format(
        name="dynamo",
        tool="Dynamo agent trace",
        known_by=(("schema", "event_type", "event_time_unix_ms", "event_source"),),
        fields={
            "arrival_time": ("request.request_received_ms",),
            "prompt_len": ("request.input_tokens", "request.replay.input_length"),
            "output_len": ("request.output_tokens",),
            "session": ("agent_context.session_id",),
            "ttft": ("request.ttft_ms",),
            "e2el": ("request.total_time_ms",),
            "block_hashes": ("request.replay.input_sequence_hashes",),
        },
        left_out=(("event that is no finished request", "event_type", _is_not("request_end")),),
        block_size="request.replay.trace_block_size",
        lacks="trace with the request_end events of Dynamo",
    ),
)
