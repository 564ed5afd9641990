"""MkDocs hook: formulas become MathML when the site is built, with a font inside the site, so that
pages need neither a script nor a network."""

import html
import importlib.resources
import re

from latex2mathml.converter import convert
from mkdocs.structure.files import File

FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[\(\[])(?P<tex>.*?)\\[\)\]]</(?P=tag)>',
    re.DOTALL,
)
LONG = 40  # characters of LaTeX
FONT = "STIXTwoMath-Regular.ttf"


def on_files(files, config):
    font = importlib.resources.files("ziamath").joinpath("fonts", FONT)
    files.append(File.generated(config, f"stylesheets/{FONT}", content=font.read_bytes()))
    return files


def on_page_content(content, page, **_):
    content = FORMULA.sub(_formula, content)
    if "arithmatex" in content:
        raise ValueError(f"{page.file.src_path}: a formula was not converted.")
    return content


def _formula(match):
    display = "block" if match["open"] == "[" else "inline"
    mathml = convert(html.unescape(match["tex"]), display=display)
    # What may not fit on a line of a telephone scrolls there.
    long = ' class="long"' if display == "inline" and len(match["tex"]) > LONG else ""
    return f"<{match['tag']}{long}>{mathml}</{match['tag']}>"
