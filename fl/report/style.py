"""How the page looks, and its frame."""

CSS = """
:root {
  color-scheme: light dark;
  --ink: #22262b; --muted: #626b77; --rule: #d5dae1; --paper: #ffffff; --back: #f5f6f8;
  --accent: #2f6fb0; --quick: #a8500a; --quick-back: #fdf0e0; --band: #f8f9fb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e8ed; --muted: #9aa5b1; --rule: #3a424c; --paper: #1b2026; --back: #13171c;
    --accent: #79b4ee; --quick: #f0b06a; --quick-back: #3a2a17; --band: #20262d;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
    "Liberation Sans", "DejaVu Sans", sans-serif;
}
main, header { max-width: 66rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.015em; }
h2 { font-size: 1.4rem; line-height: 1.3; margin: 0 0 .4rem; letter-spacing: -.01em; }
h3 { font-size: 1.08rem; margin: 2.4rem 0 .6rem; padding-top: .4rem; }
p { margin: .5rem 0; max-width: 46rem; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
.lead { color: var(--muted); margin: 0; }
section {
  background: var(--paper); border: 1px solid var(--rule); border-radius: 10px;
  padding: 1.5rem 1.6rem 1.7rem; margin: 1.5rem 0;
}
.summary ul { padding-left: 1.1rem; margin: .5rem 0 0; max-width: 52rem; }
.summary li { margin: .35rem 0; }
nav ol { margin: .4rem 0 0; padding-left: 1.3rem; columns: 20rem auto; column-gap: 2.5rem; }
nav li { break-inside: avoid; margin-bottom: .5rem; }
nav ul { list-style: none; padding-left: 0; margin: 0; font-size: .9rem; }
nav ul li { display: inline; margin: 0; }
nav ul li + li::before { content: " · "; color: var(--muted); }
.quick {
  display: inline-block; font-size: .72rem; font-weight: 600; line-height: 1; letter-spacing: .03em;
  padding: .26em .55em; border-radius: 1em; vertical-align: .12em; margin-left: .5em;
  color: var(--quick); background: var(--quick-back);
}
.facts { color: var(--muted); font-size: .9rem; margin: 0 0 .6rem; }
pre {
  margin: .5rem 0 0; padding: .7rem .9rem; overflow-x: auto; font-size: .84rem; line-height: 1.5;
  background: var(--band); border: 1px solid var(--rule); border-radius: 7px;
}
code, pre { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem; text-align: left; vertical-align: baseline; }
th:first-child, td:first-child { padding-left: .2rem; }
thead th {
  font-weight: 600; font-size: .8rem; color: var(--muted); vertical-align: bottom;
  border-bottom: 1.5px solid var(--ink); line-height: 1.25;
}
tbody tr + tr td { border-top: 1px solid var(--rule); }
tbody th { padding-top: .9rem; font-size: .88rem; border-bottom: 1px solid var(--rule); }
tbody:last-child tr:last-child td { border-bottom: 1.5px solid var(--ink); }
tbody tr:hover td { background: var(--band); }
.n { text-align: right; white-space: nowrap; }
.strong { font-weight: 600; }
.absent { color: var(--muted); font-weight: 400; font-style: italic; }
td.name { white-space: nowrap; }
td.value { overflow-wrap: anywhere; min-width: 10rem; }
.note, figcaption { color: var(--muted); font-size: .86rem; line-height: 1.5; max-width: 52rem; }
.note { margin: .5rem 0 0; }
.files { white-space: nowrap; }
.files a { margin-left: .5em; font-size: .8rem; }
figure { margin: 2rem 0 0; }
figcaption { margin-top: .4rem; }
figcaption b { color: var(--ink); }
.plot svg { display: block; height: auto; min-width: 34rem; }
.plot svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue",
  Arial, "Liberation Sans", "DejaVu Sans", sans-serif !important; }
.plot img { display: block; max-width: 100%; height: auto; border-radius: 6px;
  background: #fff; padding: 6px; }
details { margin-top: 1rem; border-top: 1px solid var(--rule); padding-top: .8rem; }
summary { cursor: pointer; font-weight: 600; }
details table { margin-top: .6rem; font-size: .84rem; }
footer { color: var(--muted); font-size: .84rem; padding: .5rem 0 3rem; }
@media (max-width: 40rem) {
  main, header { padding-left: .7rem; padding-right: .7rem; }
  header { padding-top: 1.4rem; }
  section { padding: 1.1rem .9rem 1.2rem; border-radius: 7px; }
  h1 { font-size: 1.5rem; }
  h2 { font-size: 1.2rem; }
  th, td { padding: .28rem .5rem; }
}
@media print {
  body { background: none; font-size: 11pt; }
  section { border: 0; padding: 0; }
  figure, tr { break-inside: avoid; }
  nav { display: none; }
}
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>$title</title>
<style>$css</style>
</head>
<body>
<header>
<h1>$title</h1>
<p class="lead">$lead</p>
</header>
<main>
<section class="summary" id="summary"><h2>Summary</h2>$summary</section>
<section><nav aria-label="Contents"><h2>Contents</h2>$contents</nav></section>
$sections
<section id="versions"><h2>Versions of what made this page</h2>$versions</section>
<footer>$footer</footer>
</main>
</body>
</html>
"""
