"""The site: every page is in the navigation, every link and anchor leads somewhere, and `make docs`
builds it without a warning. All but the last needs no MkDocs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench import results, speed_page
from bench.store import load
from release import website

ROOT = Path(__file__).resolve().parents[1]
NAV = re.findall(
    r"^ +- (.+): (\S+\.md)$",
    (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2],
    re.M,
)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """All pages of the site by their paths, as Markdown with the links that they have there."""
    here = {
        name: website.relinked(
            (ROOT / "docs" / name).read_text(encoding="utf-8"), f"docs/{name}", name
        )
        for name in website.docs_pages()
    }
    made = website.made_pages()
    assert not here.keys() & made.keys()
    return here | made


def test_the_navigation_has_every_page_once(pages: dict[str, str]) -> None:
    """A new page of docs/ needs one line in mkdocs.yml, and one in docs/README.md."""
    shown = [path for _, path in NAV]
    assert max(Counter(shown).values()) == 1
    assert {*shown} == {path for path in pages if not path.startswith("source/")}


def test_titles_are_unique(pages: dict[str, str]) -> None:
    assert [name for name, count in Counter(name for name, _ in NAV).items() if count > 1] == []
    titles = []
    for path, text in pages.items():
        found = re.findall(r"^# .+", re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.M | re.S), re.M)
        assert len(found) == 1 and text.startswith(found[0]), path
        titles += found
    assert len({*titles}) == len(titles)


def anchors(text: str) -> set[str]:
    """Those of a page's headings, as hosts of repositories and the site make them."""
    plain = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.M | re.S)
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.+)$", plain, re.M):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        names.add(f"{name}_{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def test_links_and_anchors_lead_somewhere(pages: dict[str, str]) -> None:
    known = {path: anchors(text) for path, text in pages.items()}
    dead = []
    for path, text in pages.items():
        for link in website.links(text):
            target, _, anchor = link.partition("#")
            if "://" in link or target.endswith(".svg"):
                continue
            place = os.path.normpath(Path(path).parent / target) if target else path
            if place not in known or (anchor and anchor not in known[place]):
                dead.append((path, link))
    assert dead == []


def test_links_of_the_repository_have_anchors() -> None:
    """As the pages are read on a host of repositories, where there is no site."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    dead = []
    for file in files:
        for link in website.links(file.read_text(encoding="utf-8")):
            target, _, anchor = link.partition("#")
            if "://" in link or not anchor:
                continue
            place = (file.parent / target).resolve() if target else file
            if anchor not in anchors(place.read_text(encoding="utf-8")):
                dead.append((file.name, link))
    assert dead == []


def test_the_front_page_begins_the_readme(pages: dict[str, str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert website.FRONT_ENDS in readme
    assert pages["index.md"].startswith("# Tensorkiln\n") and "make test" not in pages["index.md"]


def test_the_reference_has_every_public_name(pages: dict[str, str]) -> None:
    import tensorkiln as tk

    text = pages["reference/python.md"]
    for name in {*tk.__all__} - {"__version__"}:
        assert re.search(rf"(heading: |^## )tensorkiln\.(runtime\.)?{name}$", text, re.M), name
    for place in re.findall(r"^::: (\S+)$", text, re.M):
        module, _, attribute = place.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), place


def test_the_reference_has_every_function_of_the_headers(pages: dict[str, str]) -> None:
    text = pages["reference/c.md"]
    shown = set(re.findall(r"^### (\w+)$", text, re.M))
    read = {
        name: (ROOT / "tensorkiln" / name).read_text()
        for name in ("crt/kiln.h", "hosts/kiln_host.h")
    }
    defined = set(
        re.findall(
            r"^(?:static inline [^\n(]*?|\w[^\n(#]*?)\b(kiln_\w+)\(",
            read["hosts/kiln_host.h"],
            re.M,
        )
    )
    assert len(defined) > 30 and defined >= website.INTERNAL
    assert {name for name in defined if f"{name}(" not in text} == website.INTERNAL
    declared = set(re.findall(r"^[a-z][\w *]*\b(kiln_\w+)\(", read["crt/kiln.h"], re.M))
    assert len(declared) > 40
    assert {name for name in declared if f"{name}(" not in text} == set()
    assert {"kiln_host_open", "kiln_host_error", "kiln_dtype", "kiln_code"} <= shown


def test_figures_of_speed_are_those_of_the_results() -> None:
    """`python -m bench.results` writes all three from the same records."""
    records = load()
    assert speed_page.PAGE.read_text(encoding="utf-8") == speed_page.speed_page(records)
    readme = speed_page.README.read_text(encoding="utf-8")
    assert speed_page.with_table(readme, records) == readme
    whole = results.RESULTS.read_text(encoding="utf-8")
    assert whole == results.page(records, results.REMARKS.read_text(encoding="utf-8"))
    rows = re.findall(
        r"^\| .*, AVX.*? \| (\w+) \| (\d) \| (\d+) \| ([\d.]+) \| (.*) \|$", readme, re.M
    )
    assert rows
    for kind, threads, count, mean, slower in rows:
        assert f"| {kind} | {threads} | {count} | {mean} | {slower} |" in whole


def test_external_links_are_listed_and_not_fetched() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "release.website"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0
    count = len(website.external_links())
    assert done.stdout.endswith(
        f"{count} external links, none of them fetched (--fetch asks for each)\n"
    )
    assert count > 0


def test_it_is_built_without_a_warning(tmp_path: Path) -> None:
    for name in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "kiln_host_open" in (tmp_path / "reference" / "c.html").read_text(encoding="utf-8")
    assert "export_library" in (tmp_path / "reference" / "python.html").read_text(encoding="utf-8")
