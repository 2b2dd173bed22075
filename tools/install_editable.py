"""Makes `tidemark` importable in this virtual environment and gives it its command, without a build.

The compiled modules are built in place by tools/build.sh; what is left of an editable install is a
path file and a small script.
"""

import sys
import sysconfig
from pathlib import Path

root = Path(__file__).resolve().parent.parent
(Path(sysconfig.get_path("purelib")) / "tidemark-dev.pth").write_text(f"{root / 'src'}\n")
command = Path(sysconfig.get_path("scripts")) / "tidemark"
command.write_text(f"#!{sys.executable}\nimport sys\nfrom tidemark.cli import main\nsys.exit(main())\n")
command.chmod(0o755)
