"""Write the generated pages of docs/ anew: `make docs`. A test fails when they differ from the code."""

import json
from pathlib import Path

from joulewise.plan import plan_schema

HERE = Path(__file__).parent

(HERE / "plan.schema.json").write_text(json.dumps(plan_schema(), indent=2) + "\n")
