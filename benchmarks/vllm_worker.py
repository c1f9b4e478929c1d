"""vLLM on a random model of a given shape, one generation for each line on standard input. For `benchmarks/decode.py`.

    echo go | python benchmarks/vllm_worker.py --target tiny --prompt 32 --output 16

Answers with a line of JSON when it is ready, and one for each generation: seconds and output tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from decode import SHAPES, shape_config


def folder_of(shape: str, parent: Path) -> str:
    """A folder with a model's configuration and nothing else: vLLM makes the weights up."""
    folder = parent / shape
    folder.mkdir(exist_ok=True)
    config = shape_config(shape)
    config.architectures, config.dtype = ["LlamaForCausalLM"], "bfloat16"
    config.save_pretrained(folder)
    return str(folder)


def opened(options: argparse.Namespace, parent: Path) -> Any:
    """The engine, as it comes, but for prefix caching: a prompt that is not read again would cost nothing."""
    from vllm import LLM

    how: dict[str, Any] = {}
    if options.tokens:
        how["speculative_config"] = {
            "method": "draft_model",
            "model": folder_of(options.draft, parent),
            "num_speculative_tokens": options.tokens,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": [options.acceptance ** (i + 1) for i in range(options.tokens)],
        }
    return LLM(
        model=folder_of(options.target, parent),
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=options.prompt + options.output + 64,
        gpu_memory_utilization=options.memory,
        **how,
    )


def main(arguments: list[str]) -> int:
    """Open, say so, and generate when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=SHAPES, default="8b")
    parser.add_argument("--draft", choices=SHAPES, default="1b")
    parser.add_argument("--tokens", type=int, default=0, help="drafted a round; 0: plain decoding")
    parser.add_argument("--acceptance", type=float, default=0.7, help="of a drafted token, given the one before it")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--output", type=int, default=384)
    parser.add_argument("--batch", type=int, default=1, help="texts at once")
    parser.add_argument("--memory", type=float, default=0.25, help="share of the GPU's memory")
    options = parser.parse_args(arguments)
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    with tempfile.TemporaryDirectory() as scratch:
        engine = opened(options, Path(scratch))
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=options.output, ignore_eos=True, detokenize=False)
        prompts = [
            {"prompt_token_ids": [(7 * i + n) % 1000 for i in range(options.prompt)]} for n in range(options.batch)
        ]
        engine.generate(prompts, sampling, use_tqdm=False)  # warms up
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for _ in sys.stdin:
            start_s = time.monotonic()
            made = engine.generate(prompts, sampling, use_tqdm=False)
            tokens = sum(len(one.outputs[0].token_ids) for one in made)
            told = {"seconds": time.monotonic() - start_s, "tokens": tokens}
            print(json.dumps(told), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
