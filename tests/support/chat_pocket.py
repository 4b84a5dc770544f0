"""Copy pocket with a chat template: ``python tests/support/chat_pocket.py POCKET FOLDER``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)


def make(pocket: Path, folder: Path) -> None:
    """Write the model in the folder `pocket` to `folder`, as a chat model."""
    shutil.copytree(pocket, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
