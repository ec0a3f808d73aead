"""The path that users of slime type; the program is scripts/convert_torch_dist_to_hf.py."""

import runpy
from pathlib import Path

runpy.run_path(
    str(Path(__file__).parents[1] / "scripts" / "convert_torch_dist_to_hf.py"), run_name="__main__"
)
