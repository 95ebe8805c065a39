"""Write every generated file: ``python -m loadgate.dashboards.source``."""

from __future__ import annotations

from pathlib import Path

from loadgate.dashboards.source.files import generated

if __name__ == "__main__":
    folder = Path(__file__).parents[1]
    for name, text in generated().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)
