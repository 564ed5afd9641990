"""MkDocs hook: the repository's `CONTRIBUTING.md` is a page of the documentation too."""

from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent


def on_files(files, config):
    # The links of the file start at the root of the repository, those of a page in `docs`.
    text = (ROOT / "CONTRIBUTING.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "contributing.md", content=text))
    return files
