"""Write the PDF that docs/guide/ask-a-book.md reads: three pages of made-up sentences.

    python docs/research/lab/report_pdf.py FILE

The script prints nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "support"))

from make_documents import drawn, pdf

PAGES = (
    (
        "Report on the mill at Ostbury",
        "The mill stands on the river Ane and has two wheels.",
        "It was built in 1811 by Tobias Crane.",
    ),
    (
        "The miller and his family",
        "Ada Quill hid the letter behind the third millstone.",
        "Nobody found it before the flood.",
    ),
    ("The flood", "The flood of 1846 took both wheels and the road."),
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.parse_args().file.write_bytes(pdf([drawn(page) for page in PAGES]))
