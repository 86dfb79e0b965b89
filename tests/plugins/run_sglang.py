"""Runs one SGLang engine and prints what it wrote as JSON: a process of its own for each engine of the tests.

python run_sglang.py '{"engine": {Engine arguments}, "prompts": [[ids], ...], "max_tokens": 20}'
"""

from __future__ import annotations

import json
import sys

MARK = "result: "


def main() -> None:
    given = json.loads(sys.argv[1])
    import sglang

    engine = sglang.Engine(**given["engine"])
    sampling = {"temperature": 0, "max_new_tokens": given["max_tokens"], "ignore_eos": True}
    results = engine.generate(input_ids=given["prompts"], sampling_params=sampling)
    found = {
        "outputs": [result["output_ids"] for result in results],
        "steps": [result["meta_info"].get("spec_verify_ct", 0) for result in results],
    }
    sys.stdout.write(f"\n{MARK}{json.dumps(found)}\n")
    sys.stdout.flush()
    engine.shutdown()


if __name__ == "__main__":  # SGLang starts its processes by importing this file again
    main()
