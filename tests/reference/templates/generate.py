"""Writes tests/engine/data/template/cases.json: small templates of ours, and what jinja2 makes of them.

    python3 tests/reference/templates/generate.py        # needs jinja2 only (Debian: python3-jinja2)
"""

import json
import pathlib

from compare import DATE, expected, environment

TEXT = "a\u00e9\u4e2d\U0001f600 b"
VALUES = {
    "t": TEXT, "n": 7, "f": 2.5, "big": 1e22, "small": 1e-7, "yes": True, "nothing": None, "xs": [3, 1, 2],
    "words": ["b", "A", "c", "a"], "d": {"k": "v", "n": [1, {"x": None}], "'q": "it's \"so\"\n"},
    "people": [{"name": "Ann", "age": 3}, {"name": "Bob", "age": 2}, {"name": "cid"}],
    "messages": [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "yo"}],
}

TEMPLATES = {
    "output of every type": "{{ t }}|{{ n }}|{{ f }}|{{ big }}|{{ small }}|{{ yes }}|{{ nothing }}|{{ missing }}|{{ xs }}|{{ d }}|{{ 'a', 1 }}|{{ 1.0 }}",
    "white space": "  {% if yes %}\n   x  \n  {%- if yes -%}  y  {%- endif %}\n {% endif %}\n  {# gone #}\nz {{- n -}} z\n{%+ if yes %}p{% endif %}\n\n",
    "raw and line breaks": "a\r\n{% raw %}{{ not }} {% if %}{% endraw %}\r\nb\n",
    "strings": r"""{{ 'it\'s' }}{{ "a\tb\\n\x41\u00e9" }}{{ 'a' 'b' }}""",
    "operators": "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1 + 2 * 3 - 4 }} {{ 'a' ~ 1 ~ none }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 7.5 // 2 }} {{ -n }} {{ +f }}",
    "precedence": "{{ not yes or n > 3 }} {{ -n|abs }} {{ 1 + xs|length }} {{ n if not yes else f }} {{ not n in xs }} {{ n not in xs and 1 in xs }} {{ 1 < n <= 7 }} {{ 1 ~ 2 * 3 }}",
    "slices": "{{ t[0] }}{{ t[-1] }}|{{ t[1:3] }}|{{ t[::-1] }}|{{ xs[1:] }}|{{ xs[::-1] }}|{{ xs[:-1] }}|{{ xs[5:] }}|{{ xs[-9] }}|{{ t[::2] }}",
    "loops": "{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ x }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('p', 'q') }};{% else %}none{% endfor %}",
    "loops that skip": "{% for x in xs if x != 1 %}{{ loop.index }}{{ x }}{% if loop.last %}!{% endif %}{% endfor %}{% for x in [] %}{% else %}empty{% endfor %}{% for x in missing %}{{ x }}{% endfor %}",
    "break and continue": "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "loops over dictionaries": "{% for k in d %}{{ k }},{% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in d|items %}{{ k }}{% endfor %}{{ d.keys()|list }}{{ d.values()|list }}",
    "scopes": "{% set x = 1 %}{% for i in xs %}{% set x = i %}{{ x }}{% endfor %}{{ x }}{% if yes %}{% set x = 9 %}{% endif %}{{ x }}",
    "namespaces": "{% set ns = namespace(a=1, b='x') %}{% for i in xs %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    "set blocks": "{% set x | trim | upper %}  hi {{ n }} {% endset %}[{{ x }}]{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "macros": "{% macro m(a, b=2, c='z') %}{{ a }}-{{ b }}-{{ c }}-{{ later }}{% endmacro %}{% set later = 5 %}{{ m(1) }} {{ m(1, c=3) }} {{ m(b=4, a=0)|length }}",
    "macros that call themselves": "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(4) }}",
    "call blocks": "{% macro box(title) %}<{{ title }}:{{ caller() }}>{% endmacro %}{% call box('t') %}in {{ n }}{% endcall %}",
    "filter blocks": "{% filter upper %}ab {{ t }}{% endfilter %}",
    "generation": "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}!{% endgeneration %}{% endif %};{% endfor %}",
    "tojson": "{{ d|tojson }}|{{ d|tojson(indent=2) }}|{{ [1, 2.0, true, none, t]|tojson }}|{{ xs|tojson(separators=(',', ':')) }}|{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}|{{ t|tojson(ensure_ascii=true) }}|{{ {}|tojson(indent=1) }}{{ []|tojson }}",
    "text filters": "{{ ' a b '|trim }}|{{ 'xxax'|trim('x') }}|{{ t|upper }}|{{ 'ABC'|lower }}|{{ 'ab cd'|title }}|{{ 'ab CD'|capitalize }}|{{ 'aXbX'|replace('X', '-') }}|{{ 'a\n\nb'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}|{{ '<&\"'|escape }}|{{ 5|string + 'x' }}",
    "list filters": "{{ xs|first }}{{ xs|last }}{{ xs|length }}{{ xs|sort }}{{ xs|sort(reverse=true) }}{{ words|sort }}{{ words|unique|list }}{{ xs|reverse|list }}{{ t|reverse }}{{ xs|sum }}{{ xs|max }}{{ xs|min }}{{ xs|join(', ') }}{{ people|join('/', 'name') }}{{ {'b': 1, 'A': 2}|dictsort }}",
    "choosing": "{{ people|selectattr('age', 'defined')|map(attribute='name')|list }}{{ people|rejectattr('name', 'equalto', 'Ann')|list|length }}{{ xs|select('odd')|list }}{{ xs|reject('gt', 1)|list }}{{ words|map('upper')|join }}{{ people|selectattr('age')|list|length }}{{ people|map(attribute='age', default=0)|list }}",
    "generators are true": "{% if []|select %}yes{% else %}no{% endif %}{% if []|select|list %}yes{% else %}no{% endif %}",
    "numbers": "{{ '12'|int }}{{ 'x'|int }}{{ 'x'|int(3) }}{{ 3.9|int }}{{ '2.5'|float }}{{ -3|abs }}{{ 10 is divisibleby 5 }}",
    "default": "{{ missing|default('x') }}{{ nothing|default('x') }}{{ ''|default('x', true) }}{{ missing|d('y') }}",
    "tests": "{% for x in [t, n, f, yes, nothing, xs, d, missing] %}{{ x is defined }}{{ x is none }}{{ x is string }}{{ x is number }}{{ x is integer }}{{ x is float }}{{ x is boolean }}{{ x is mapping }}{{ x is iterable }}{{ x is sequence }}{{ x is true }};{% endfor %}{{ n is odd }}{{ n is even }}{{ n is in [7] }}{{ n is eq 7 }}{{ n is not lt 3 }}{{ 'a' is lower }}{{ missing is undefined }}",
    "text methods": "{{ ' a '.strip() }}|{{ 'xay'.strip('xy') }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}|{{ 'aXb'.replace('X', '') }}|{{ 'ab'.upper() }}{{ t.lower() }}|{{ t.find('b') }}{{ 'abab'.count('ab') }}|{{ '-'.join(['a', 'b']) }}|{{ '{} {1} {x}'.format(1, 2, x=3) if false else '{} {x}'.format(1, x=3) }}|{{ 'a\nb\r\nc'.splitlines() }}|{{ 'abc'.removeprefix('a').removesuffix('c') }}|{{ '\u00a0x\u3000'.strip() }}",
    "extremes": "{{ words|min }}{{ words|max }}{{ words|min(case_sensitive=true) }}{{ words|max(true) }}{{ (people[:2]|min(attribute='age')).name }}{{ (people[:2]|max(attribute='age')).name }}{{ []|max }}|{{ ['b', 'A', 'B', 'a']|unique|join }}{{ ['b', 'A', 'B', 'a']|unique(true)|join }}{{ (people + people)|unique(attribute='name')|map(attribute='name')|join(',') }}|{{ 'a b  c '.split(none, 1) }}",
    "formats": "{{ '%s is %d%%' % ('a', 3) }}{{ '%s' % 'b' }}",
    "members": "{{ d.k }}{{ d['k'] }}{{ d.get('k') }}{{ d.get('z', 4) }}{{ d.z }}{{ d.n[1].x }}{{ people[0].name }}{{ 'k' in d }}{{ 'z' in d }}{{ [1, 2].index(2) }}{{ {'items': 3}['items'] }}",
    "dates": "{{ strftime_now('%d %b %Y') }}",
    "an undefined attribute": "{{ missing.x }}",
    "an undefined call": "{{ missing() }}",
    "raised": "{{ raise_exception('Not like this') }}",
    "text and number": "{{ 'a' + 1 }}",
    "a changed list": "{% set x = xs.append(4) %}",
    "none is no list": "{% for x in nothing %}{% endfor %}",
    "chat": "{{ bos }}{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] | trim + '<|end|>\n' }}{% endfor %}{% if prompt %}{{ '<|assistant|>\n' }}{% endif %}",
}


def main():
    env = environment()
    cases = [{"name": name, "template": source} | expected(env, source, VALUES) for name, source in TEMPLATES.items()]
    here = pathlib.Path(__file__).resolve().parents[2] / "engine" / "data" / "template" / "cases.json"
    document = {"date": DATE, "variables": VALUES, "cases": cases}
    here.write_text(json.dumps(document, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    print(f"{len(cases)} cases, {sum('error' in case for case in cases)} of them errors")
    for case in cases:
        if "error" in case:
            print("  ", case["name"], case["error"])


if __name__ == "__main__":
    main()
