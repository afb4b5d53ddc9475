"""The page in headless Chromium: tables are sorted and searched, texts open, the wheel scrolls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import tensor
from tensorkiln.kernels.case import rand
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.report import Report
from tests.report.browser import DARK, act
from tests.report.reading import json_of, read, rows
from tests.report.test_report import MODULE


@pytest.fixture(scope="module")
def report() -> Report:
    return tk.explain(MODULE, seconds=0.001, name="small")


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.save(tmp_path_factory.mktemp("small"))


def texts(table: str, column: int) -> str:
    """In the page: the texts of a column, from top to bottom."""
    rows = f"all('table.{table} > tbody > tr:not(.detail)')"
    return f"{rows}.map((r) => r.cells[{column}].innerText.trim())"


# -- tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["kernels", "passes", "nodes", "memory"])
def test_every_column_sorts_by_what_it_means(report: Report, page: Path, table: str) -> None:
    """Numbers by value whatever their unit, texts with their numbers in order, and what is not
    known last in both directions."""
    root = read(report.html())
    columns = json_of(root, "data")["tables"][table]["columns"]
    script = f"""
    const folded = one('[data-table={table}]').closest('details');
    if (folded) folded.open = true;
    await later();
    const click = (head) => {{
      one('button', head).click();
      const order = tables.{table}.rows.map((r) => r.number);
      return [head.getAttribute('aria-sort'), order, all('table.{table} [aria-sort]').length];
    }};
    told.columns = all('table.{table} th').map((head) => [click(head), click(head)]);
    told.shown = {texts(table, len(columns) - 1)};
    """
    answer = act(page, script)
    table_rows = rows(root, table)
    assert len(answer["columns"]) == len(columns)
    for (title, kind), turns in zip(columns, answer["columns"], strict=True):
        first = "descending" if kind == "number" else "ascending"
        second = "ascending" if kind == "number" else "descending"
        assert [(direction, count) for direction, _, count in turns] == [(first, 1), (second, 1)]
        for direction, order, _ in turns:
            assert sorted(order) == list(range(len(table_rows)))
            keys = [table_rows[i].keys[title] for i in order]
            known_keys = [k for k in keys if k not in (None, "")]
            assert all(k in (None, "") for k in keys[len(known_keys) :]), (
                "what is not known is last"
            )
            if kind == "number":
                assert known_keys == sorted(known_keys, reverse=direction == "descending")
    last = columns[-1][0]
    assert answer["shown"] == [table_rows[i].cells[last] for i in answer["columns"][-1][1][1]]


def test_texts_are_compared_with_their_numbers(page: Path) -> None:
    script = """
    told.order = ["b", "conv_10", null, "conv_2", "", "a_1"].sort((x, y) => compare(x, y, 1));
    told.back = ["conv_10", null, "conv_2", "a_1"].sort((x, y) => compare(x, y, -1));
    told.numbers = [3, null, 20, 0.5].sort((x, y) => compare(x, y, -1));
    """
    answer = act(page, script)
    assert answer["order"][:4] == ["a_1", "b", "conv_2", "conv_10"]
    assert answer["back"] == ["conv_10", "conv_2", "a_1", None]
    assert answer["numbers"] == [20, 3, 0.5, None]


def test_headers_are_buttons_of_the_keyboard(page: Path) -> None:
    script = """
    const about = (b) => [b.tagName, b.tabIndex, b.parentNode.scope ?? b.ariaExpanded];
    told.heads = all('table.kernels th').map((th) => about(th.children[0]));
    told.opener = all('td .opener').map((b) => [b.tagName, b.tabIndex, b.ariaExpanded]);
    """
    answer = act(page, script)
    assert all(h == ["BUTTON", 0, "col"] for h in answer["heads"]) and len(answer["heads"]) == 8
    assert all(o == ["BUTTON", 0, "false"] for o in answer["opener"])


def test_search_shows_rows_with_every_word_and_counts_them(report: Report, page: Path) -> None:
    table_rows = rows(read(report.html()), "passes")
    script = f"""
    const input = one('[data-table=passes] input');
    told.before = one('[data-table=passes] output').textContent;
    told.label = input.getAttribute('aria-label');
    const search = (text) => {{
      input.value = text;
      input.dispatchEvent(new Event('input'));
      return [{texts("passes", 1)}, one('[data-table=passes] output').textContent];
    }};
    told.folds = search('FOLD');
    told.both = search('lines  tir');
    told.none = search('no such pass');
    input.dispatchEvent(new KeyboardEvent('keydown', {{ key: 'Escape' }}));
    told.after = [input.value, one('[data-table=passes] output').textContent];
    """
    answer = act(page, script)
    count = len(table_rows)
    assert answer["before"] == f"{count} rows" and answer["label"] == "search passes"
    folds = [r.cells["pass"] for r in table_rows if "fold" in r.cells["pass"]]
    assert answer["folds"] == [folds, f"{len(folds)} of {count} rows"]
    matching = [
        r.cells["pass"]
        for r in table_rows
        if r.cells["pipeline"] == "tir" and r.cells["change"].endswith("lines")
    ]
    assert matching and answer["both"] == [matching, f"{len(matching)} of {count} rows"]
    assert answer["none"] == [[], f"0 of {count} rows"]
    assert answer["after"] == ["", f"{count} rows"]


# -- what opens ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1500, 1200), (600, 900)])
def test_a_difference_is_as_wide_as_the_page_and_scrolls_inside(
    report: Report, page: Path, size: tuple[int, int]
) -> None:
    table_rows = rows(read(report.html()), "passes")
    number = next(i for i, r in enumerate(table_rows) if r.cells["pass"] == "fuse_ops")
    script = f"""
    told.before = all('pre').length;
    one('#pass-{number} .opener').click();
    const pre = one('#pass-{number}-detail pre'), card = one('[data-table=passes]');
    told.expanded = one('#pass-{number} .opener').getAttribute('aria-expanded');
    told.wide = [pre.clientWidth, card.clientWidth, pre.scrollWidth, innerWidth];
    told.page = document.documentElement.scrollWidth;
    told.left = pre.getBoundingClientRect().x - card.getBoundingClientRect().x;
    told.lines = all('i', pre).map((i) => [i.className, i.textContent]);
    const ground = (query) => getComputedStyle(one(query, pre)).backgroundColor;
    told.colours = [ground('.added'), ground('.removed')];
    tables.passes.sort(1);
    told.follows = one('#pass-{number}').nextElementSibling.id;
    one('#pass-{number} .opener').click();
    told.after = all('pre').length;
    """
    answer = act(page, script, size=size)
    assert (answer["before"], answer["after"], answer["expanded"]) == (0, 0, "true")
    pre, card, lines, window = answer["wide"]
    assert pre == card > 0.9 * window and lines > pre
    assert answer["page"] == window and 0 <= answer["left"] <= 2
    assert answer["follows"] == f"pass-{number}-detail"
    diff = table_rows[number].texts("diff")[""].split("\n")
    assert [text for _, text in answer["lines"]] == diff
    kinds = {"+": "added", "-": "removed", "@": "hunk"}
    for kind, text in answer["lines"]:
        is_file = text[:3] in ("+++", "---", "===")
        assert kind == ("file" if is_file else kinds.get(text[:1], "")), text
    assert answer["colours"] == ["rgb(226, 246, 230)", "rgb(253, 231, 231)"]


def test_a_link_opens_its_kernel_whatever_is_searched(page: Path) -> None:
    script = """
    const input = one('[data-table=kernels] input');
    input.value = 'no such';
    input.dispatchEvent(new Event('input'));
    told.hidden = all('table.kernels tbody tr').length;
    send(one('#graph .node a'), MouseEvent, 'click');
    await later();
    told.hash = location.hash;
    told.open = all('.detail').map((d) => d.id);
    told.heads = all('.detail h3').map((h) => h.textContent);
    told.searched = input.value;
    """
    answer = act(page, script)
    assert answer["hidden"] == 0 and answer["searched"] == ""
    assert answer["open"] == [f"{answer['hash'][1:]}-detail"]
    assert answer["heads"] == ["tensor program, as scheduled", "LLVM IR", "assembly"]


def test_the_page_s_address_opens_a_kernel(page: Path) -> None:
    answer = act(page, "told.open = all('.detail').map((d) => d.id)", fragment="#kernel-1")
    assert answer["open"] == ["kernel-1-detail"]


def test_names_that_are_markup_are_shown_as_text(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror='document.title = 1'>\"&amp;"
    g = GraphBuilder()
    x = g.param("x", tensor((4, 4), "float32"))
    softmax = g.emit("softmax", x, axis=-1, span=evil)
    path = tk.explain(IRModule((g.finish(softmax),)), seconds=0, name=evil).save(tmp_path)
    script = """
    one('#graph details').open = true;
    one('.opener').click();
    await later();
    for (const row of tables.kernels.rows) tables.kernels.open(row, true);
    told.images = all('img').length;
    told.title = document.title;
    told.head = one('h1').textContent;
    told.node = one('#node-1').cells[0].textContent;
    told.drawn = one('.node.op title').textContent;
    told.about = one('.about').textContent;
    """
    answer = act(path, script)
    assert answer["images"] == 0 and answer["title"] == f"{evil} · kiln explain"
    assert answer["head"] == answer["node"] == evil
    assert evil in answer["drawn"] and evil in answer["about"]


# -- the graph -------------------------------------------------------------------------------------

WHEEL = """
const wheel = (to, options) => !send(to, WheelEvent, 'wheel', {
  deltaY: -100, clientX: at.x + 300, clientY: at.y + 200, ...options });
const view = one('.view'), svg = one('.view svg'), at = svg.getBoundingClientRect();
const box = () => svg.getAttribute('viewBox').split(' ').map(Number);
"""


def test_the_wheel_scrolls_the_page_and_zooms_with_ctrl(page: Path) -> None:
    script = f"""{WHEEL}
    told.boxes = [box()];
    told.taken = [];
    const ctrl = [{{ ctrlKey: true }}, {{ metaKey: true }}];
    for (const options of [{{}}, {{ shiftKey: true }}, {{ deltaY: 100 }}, ...ctrl]) {{
      told.taken.push(wheel(svg, options));
      told.boxes.push(box());
    }}
    told.touch = getComputedStyle(svg).touchAction;
    told.scrolls = ['overflowY', 'overflowX'].map((n) => getComputedStyle(view)[n]);
    """
    answer = act(page, script)
    assert answer["taken"] == [False, False, False, True, True]
    first, *further_boxes = answer["boxes"]
    assert further_boxes[0] == further_boxes[1] == further_boxes[2] == first
    assert further_boxes[3][2] < first[2] and further_boxes[4][2] < further_boxes[3][2]
    assert answer["touch"] == "pan-y" and answer["scrolls"] == ["hidden", "hidden"]


def test_keys_and_buttons_move_and_zoom(page: Path) -> None:
    script = f"""{WHEEL}
    const start = box();
    const press = (key, options) => !send(view, KeyboardEvent, 'keydown', {{ key, ...options }});
    const tried = (act) => {{
      const taken = act(), found = box();
      one('.view button[name=top]').click();
      return [taken, found];
    }};
    told.keys = {{}};
    told.buttons = {{}};
    for (const key of ['+', '-', 'ArrowDown', 'ArrowRight', '0', 'Home', 'x'])
      told.keys[key] = tried(() => press(key));
    for (const b of all('.view button')) told.buttons[b.name] = tried(() => b.click());
    told.ctrl = tried(() => press('+', {{ ctrlKey: true }}));
    const slider = one('.where');
    told.slider = tried(() => {{
      slider.value = slider.max;
      send(slider, Event, 'input');
    }});
    told.start = start;
    told.height = data.graph.height;
    told.stop = [view.tabIndex, all('.view a').every((a) => a.tabIndex === -1)];
    """
    answer = act(page, script)
    x, y, w, h = answer["start"]
    keys = {k: box for k, (_, box) in answer["keys"].items()}
    assert {
        k for k, (is_default_prevented, _) in answer["keys"].items() if is_default_prevented
    } == {*keys} - {"x"}
    assert keys["+"][2] < w and keys["x"] == keys["Home"] == [x, y, w, h]
    assert keys["ArrowDown"][1] > y and keys["ArrowDown"][0] == x
    assert keys["ArrowRight"][0] > x and keys["ArrowRight"][1] == y
    assert keys["0"][1] <= 0.5 and keys["0"][3] >= answer["height"] - 1
    assert answer["ctrl"] == [False, [x, y, w, h]]  # the browser's own zoom
    buttons = {k: box for k, (_, box) in answer["buttons"].items()}
    assert buttons["in"] == keys["+"] and buttons["out"] == keys["-"]
    assert buttons["whole"] == keys["0"] and buttons["top"] == [x, y, w, h]
    assert answer["slider"][1][1] == pytest.approx(answer["height"] - h / 2, abs=1.5)
    assert answer["stop"] == [0, True]


def test_a_node_of_the_table_is_shown_in_the_graph(page: Path) -> None:
    script = f"""{WHEEL}
    one('#graph details').open = true;
    await later();
    one('#node-7 a').click();
    await later();
    told.box = box();
    told.centre = data.graph.centres[7];
    told.found = all('.found title').map((t) => t.textContent.split('\\n')[0]);
    told.name = one('#node-7').cells[0].textContent;
    """
    answer = act(page, script)
    x, y, w, h = answer["box"]
    assert [x + w / 2, y + h / 2] == pytest.approx(answer["centre"])
    assert answer["found"] == [answer["name"]]


# -- light, dark, narrow ---------------------------------------------------------------------------

# Of a page that was never seen: what another test chose may be stored.
LOOKS = """
localStorage.clear();
delete document.documentElement.dataset.theme;
showTheme();
const looks = () => [getComputedStyle(document.body).backgroundColor, one('#theme').textContent,
  getComputedStyle(one('.node.op rect')).fill, getComputedStyle(one('rect.block')).fill];
told.first = looks();
one('#theme').click();
told.second = looks();
told.stored = stored();
showTheme(stored());
told.again = looks();
"""


def test_dark_follows_the_system_and_the_choice_is_kept(page: Path) -> None:
    light, dark = (
        act(page, LOOKS),
        act(
            page,
            LOOKS,
            DARK,
        ),
    )
    assert light["first"][:2] == ["rgb(246, 247, 250)", "Dark"]
    assert dark["first"][:2] == ["rgb(18, 22, 30)", "Light"]
    assert light["second"] == dark["first"] and dark["second"] == light["first"]
    for answer, chosen in ((light, "dark"), (dark, "light")):
        assert answer["again"] == answer["second"]
        assert answer["stored"] in (chosen, None)  # files may have no storage


def test_a_page_without_storage_works(page: Path) -> None:
    script = """
    Object.defineProperty(window, 'localStorage', { get() { throw new Error('denied'); } });
    told.stored = [stored(), stored('dark')];
    one('#theme').click();
    told.theme = document.documentElement.dataset.theme;
    """
    answer = act(page, script)
    assert answer["stored"] == [None, None] and answer["theme"] in ("dark", "light")


def test_a_narrow_page_does_not_scroll_sideways(page: Path) -> None:
    script = """
    for (const row of tables.kernels.rows) tables.kernels.open(row, true);
    for (const d of all('details')) d.open = true;
    await later();
    told.widths = [document.documentElement.scrollWidth, innerWidth];
    const sides = all('#kernel-0-detail .sides > div').map((d) => d.getBoundingClientRect().x);
    told.columns = new Set(sides).size;
    """
    answer = act(page, script, size=(500, 900))
    assert answer["widths"][0] <= answer["widths"][1] and answer["columns"] == 1
    assert act(page, script)["columns"] == 3


def test_all_rows_are_printed(large: tuple[Report, Path]) -> None:
    script = """
    one('#graph details').open = true;
    await later();
    const count = () => all('table.nodes tbody tr').length;
    told.counts = [count(), one('[data-table=nodes] .more').textContent];
    dispatchEvent(new Event('beforeprint'));
    told.counts.push(count());
    """
    answer = act(large[1], script)
    count = len(large[0].story.graph.nodes)
    assert answer["counts"] == [100, f"Show all {count:,}", count]


# -- large models ----------------------------------------------------------------------------------


def chain_of_blocks(blocks: int, widths: tuple[int, ...]) -> IRModule:
    """Nine nodes a block, in a chain with a skip in each."""
    g = GraphBuilder()
    h = g.param("x", tensor((8, widths[0]), "float32"))
    was = widths[0]

    def emit(op: str, *args: Any, **attrs: Any) -> Any:
        return g.emit(op, *args, span=f"block{b}.{op}", **attrs)

    for b in range(blocks):
        wide = widths[b * len(widths) // blocks]
        a = emit("add", emit("matmul", h, rand(was, wide, seed=b)), rand(wide, seed=b))
        a = emit("relu", a)
        c = emit("sigmoid", emit("matmul", a, rand(wide, wide, seed=b)))
        h = emit("add", emit("tanh", emit("softmax", emit("mul", a, c), axis=-1)), a)
        was = wide
    return IRModule((g.finish(h),))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """A model of 2,000 nodes."""
    report = tk.explain(chain_of_blocks(223, (16, 24, 40, 64)), seconds=0, name="large")
    return report, report.save(tmp_path_factory.mktemp("large"))


def test_2000_nodes_open_with_few_elements_and_bytes(large: tuple[Report, Path]) -> None:
    """What makes a page open fast: few elements, and few bytes that are read before it is shown."""
    report, path = large
    story = report.story
    assert len(story.graph.nodes) > 2000 and story.graph.placed is not None
    html = path.read_text(encoding="utf-8")
    texts = sum(
        len(k.llvm) + len(k.tir) + len(k.scheduled) + len(k.assembly) + len(k.trace)
        for k in story.kernels
    )
    texts += sum(len(line) + 1 for p in story.passes for line in p.diff)
    before = html.index('<script type="application/json" id="text-')
    assert before < 700_000  # 350 a node
    assert len(html) - before < 1.3 * texts
    script = """
    told.elements = all('*').length;
    told.drawn = all('.node').length;
    graph.fit();
    told.top = Number(one('.view svg').getAttribute('viewBox').split(' ')[1]);
    told.far = [all('.node').length, one('.view svg').classList.contains('far')];
    graph.top();
    told.again = all('.node').length;
    """
    answer = act(path, script)
    assert answer["elements"] < 5000
    assert 5 < answer["drawn"] < 40 and answer["drawn"] == answer["again"]
    assert answer["top"] == pytest.approx(0, abs=1)
    assert answer["drawn"] < answer["far"][0] < 500 and answer["far"][1]


def test_data_is_plain_ascii_without_markup(large: tuple[Report, Path]) -> None:
    root = read(large[0].html())
    for element in root.all("script", type="application/json"):
        assert element.text.isascii() and "<" not in element.text
        json.loads(element.text)
