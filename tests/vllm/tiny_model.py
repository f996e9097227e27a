"""A small Llama with random weights, made anew, whose output depends on its whole context.

With vLLM's dummy weights the next token depends on the last one alone, so that equal tokens would
prove nothing about the KV cache.
"""

import json


def write_tiny_model(
    folder,
    vocab_size=4000,
    *,
    width=128,
    inner=256,
    layers=4,
    heads=4,
    kv_heads=2,
    max_model_len=2048,
):
    """Write configuration, tokenizer and weights; return the folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            vocab_size=vocab_size,
            max_position_embeddings=max_model_len,
        )
    ).float()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() == 1:
                continue
            # Attention is made strong, so that the tokens before the last have a say.
            scale = 1.0 if "embed" in name else 0.08
            if "q_proj" in name or "k_proj" in name:
                scale *= 3
            weights.normal_(0, scale)
    model.save_pretrained(folder)
    special = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    words = special | {f"t{number}": number for number in range(4, vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "pad_token": "<pad>",
                "unk_token": "<unk>",
                "model_max_length": 2048,
            }
        )
    )
    return folder
