"""MkDocs hook: `llms.txt` names every page of the navigation with its first sentence, in the format
of llmstxt.org; `llms-full.txt` holds all these pages as Markdown, in the same order."""

import re

import griffe
from mkdocs.structure.files import File

DIRECTIVE = re.compile(r"^::: (\S+)\n(?: {4}.*\n)*", re.MULTILINE)
NOT_PROSE = re.compile(r"^(```.*?^```|\$\$.*?\$\$|[#!|<].*?)$", re.DOTALL | re.MULTILINE)
SENTENCE = re.compile(r".+?[.?!](?=\s)|.+")
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def on_nav(nav, config, files):
    loader = griffe.GriffeLoader(search_paths=["src"])
    package = loader.load("steingrad")
    loader.resolve_aliases()

    def documented(directive):
        """The name and the docstring of what a directive of mkdocstrings shows."""
        docstring = package[directive[1].partition(".")[2]].docstring
        return f"\n## `{directive[1]}`\n\n{docstring.value if docstring else ''}\n"

    sections, full = {}, []
    for page in nav.pages:
        text = page.file.content_string
        section = page.parent.title if page.parent else "Documentation"
        link = f"[{re.match(r'# (.+)', text)[1]}]({page.canonical_url or page.file.url})"
        sections.setdefault(section, []).append(f"- {link}: {description(text)}")
        full.append(DIRECTIVE.sub(documented, text).strip())
    lists = [f"## {name}\n\n" + "\n".join(entries) for name, entries in sections.items()]
    index = "\n\n".join([f"# {config.site_name}", f"> {config.site_description}", *lists])
    files.append(File.generated(config, "llms.txt", content=index + "\n"))
    files.append(File.generated(config, "llms-full.txt", content="\n\n---\n\n".join(full) + "\n"))


def description(markdown: str) -> str:
    """The names that a page of the reference documents, or the first sentence of another page."""
    if names := DIRECTIVE.findall(markdown):
        return ", ".join(f"`{name.rpartition('.')[2]}`" for name in names) + "."
    paragraph = NOT_PROSE.sub("", markdown).strip().partition("\n\n")[0]
    sentence = SENTENCE.match(" ".join(paragraph.split()))[0]
    return re.sub(":$", ".", LINK.sub(r"\1", sentence))
