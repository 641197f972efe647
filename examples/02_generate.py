"""Generates text with a Gemma 3 GGUF model, token by token.

    python examples/02_generate.py [MODEL.gguf ["PROMPT"]]

Without arguments the demo model is asked a sum. The device is the current one: that of
NPU_DEVICE, else emu:npu2, an emulated NPU.
"""

import sys
from pathlib import Path

from npu import gemma3

DEMO = Path(__file__).parent / "demo_model/demo-gemma3.gguf"


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else str(DEMO)
    prompt = sys.argv[2] if len(sys.argv) > 2 else "What is 17 + 25?"
    model, tokenizer = gemma3.load(path)
    chat = tokenizer.render_chat([{"role": "user", "content": prompt}])
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
