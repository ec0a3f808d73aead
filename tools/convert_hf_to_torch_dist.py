"""The path that users of slime type; the program is scripts/convert_hf_to_torch_dist.py."""

import runpy
from pathlib import Path

runpy.run_path(
    str(Path(__file__).parents[1] / "scripts" / "convert_hf_to_torch_dist.py"), run_name="__main__"
)
