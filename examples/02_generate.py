"""Generates text with a Gemma 3 GGUF model, token by token.

    python examples/02_generate.py MODEL.gguf "What is 3 + 4?"

The device is the current one (NPU_DEVICE; the emulated NPU when there is no hardware).
"""

import sys

from npu import gemma3


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit('usage: python examples/02_generate.py MODEL.gguf "PROMPT"')
    model, tokenizer = gemma3.load(sys.argv[1])
    chat = tokenizer.render_chat([{"role": "user", "content": sys.argv[2]}])
    generation = gemma3.Generation(model, tokenizer, tokenizer.encode(chat), max_tokens=64)
    for text in generation:
        print(text, end="", flush=True)
    print()
    timings = generation.timings
    print(
        f"{timings.prompt_tokens} prompt tokens in {timings.first_token:.3f} s, then "
        f"{timings.decode_rate:.1f} tokens/s (host time)",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
