"""Random order, drawn once per request by hashing what is fixed about it.

Knows:   arrival time and prompt length, as the seed of the hash; no order follows from either.
Source:  SGLang's `random` schedule policy; the null hypothesis of every comparison.
Caution: requests equal in arrival (to the microsecond) and prompt length draw equal numbers and
         so stay in order of arrival.
"""

SEED = 0


def waiting_key(request, engine):
    number = mix(int(request.arrival_time * 1000000.0) + SEED)
    return mix(number + request.num_prompt_tokens)


def mix(number):
    # Squaring breaks the straight lines that a linear hash would draw through even spacings. The
    # modulus is a prime below 2**31, so that the square fits in 64 bits.
    for _ in range(4):
        number = number % 2147483647
        number = (number * number // 65536 + number * 48271 + 12345) % 2147483647
    return number
