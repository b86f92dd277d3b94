"""Check a built site: ``python docs/_ext/check_site.py build/docs``.

Every internal link must lead to a file that is there and, with a fragment, to an id in it. No
script, style, font or image may come from elsewhere: the site is read offline. Where a Chromium
is installed, it searches the site from the file system and must find a page and a name.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes by which a page loads something, by tag.
LOADS = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "link": ("href",),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src",),
    "object": ("data",),
}
#: Relations of <link> that name a page without loading it.
NAMES_ONLY = {"canonical", "next", "prev", "index", "search", "author"}


class Page(HTMLParser):
    """The ids, links and loaded files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what the tag names."""
        given = {name: value for name, value in attrs if value}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and NAMES_ONLY & set(given.get("rel", "").split()):
            self.links.append(given["href"])
            return
        for name in LOADS.get(tag, ()):
            if name in given:
                parts = given[name].split(",") if name == "srcset" else [given[name]]
                self.loaded += [part.split()[0] for part in parts if part.strip()]


def problems(site: Path) -> list[str]:
    """Return what is wrong with the site, a line each."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}
    pages = {path: Page(text) for path, text in texts.items()}
    found = [] if pages else [f"{site}: no page"]
    for path, page in pages.items():
        where = path.relative_to(site)
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme == "data" and link in page.loaded:
                continue
            if parts.scheme or parts.netloc:
                if link in page.loaded:
                    found.append(f"{where}: loads {link} from elsewhere")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                found.append(f"{where}: {link} leads nowhere")
            elif parts.fragment and target in pages:
                if unquote(parts.fragment) not in pages[target].ids:
                    found.append(f"{where}: {link} names no place of its page")
    for path in sorted(site.rglob("*.css")):
        for link in re.findall(r"url\(\s*['\"]?(?!data:)([^'\")]+)", path.read_text("utf-8")):
            if re.match(r"(https?:)?//", link):
                found.append(f"{path.relative_to(site)}: loads {link} from elsewhere")
    return found


#: What is searched for, and a page that must be found.
SEARCHES = {
    "oort": "policies/oort.html",
    "make_selector": "api/generated/cvrcore.make_selector.html",
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def search_problems(site: Path, browser: str) -> list[str]:
    """Return what a browser that opens the search page as a file does not find."""
    found = []
    for words, page in SEARCHES.items():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            done = subprocess.run(
                [
                    browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                    "--disable-background-networking", "--disable-component-update",
                    "--disable-sync", f"--user-data-dir={profile}", "--enable-logging=stderr",
                    "--v=0", "--virtual-time-budget=20000", "--dump-dom",
                    f"{(site / 'search.html').as_uri()}?q={words}",
                ],
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
        results = done.stdout.partition('id="search-results"')[2]  # not the links of the sidebar
        if f'href="{page}' not in results:
            found.append(f"search.html: {words!r} does not find {page}")
        found += [f"search.html: {line}" for line in done.stderr.splitlines() if "CONSOLE" in line]
    return found


def main(arguments: list[str]) -> int:
    """Print the problems of the site; return 1 if there are any."""
    site = Path(arguments[0]).resolve()
    found = problems(site)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser:
        found += search_problems(site, browser)
    searched = "search works" if browser else f"search not tried, none of {', '.join(BROWSERS)}"
    n_pages = len(list(site.rglob("*.html")))
    print("\n".join(found) or f"{n_pages} pages: every link leads somewhere; {searched}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
