# SPDX-License-Identifier: Apache-2.0
"""Chat templates: where a folder has them, tools, thoughts, contents in parts
and generation blocks, beside apply_chat_template() of transformers. The
templates are those of tests/fixture_makers/chat_templates.py."""
import json
import shutil

from suite import RecordedSuite, ZOO_FIXTURES, run_program, write_json
from suite import write_json_lines

TEMPLATES = json.loads(
    (ZOO_FIXTURES / "chat_templates.json").read_text())["templates"]
# The others show the time.
NAMES = [name for name, text in TEMPLATES.items() if "strftime" not in text]
TOOL_USE = "tools:{% for t in tools %}{{ t.function.name }}{% endfor %}|" \
    "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}" \
    "{% if add_generation_prompt %}>{% endif %}"
FORMS = ["string", "list", "tool_list", "jinja", "json", "additional",
         "jinja_and_config"]
TEXTS = ["Hi", "  spaces around \n", "two\n\nlines", "Größe 日本 😀",
         "<think>\nhm\n</think>\n\nyes", "", "a \"quote\" & <b>", "{{ x }}",
         "<tool_response>\nx\n</tool_response>", "tab\tand\r\nline"]


def content(random):
    how = random.random()
    if how < .8:
        return random.choice(TEXTS)
    if how < .93:
        return [{"type": "text", "text": random.choice(TEXTS)}
                for _ in range(random.randrange(1, 3))] + (
            [{"type": "image"}] if random.random() < .3 else [])
    return None


def value(random, depth=0):
    how = random.randrange(9 if depth < 2 else 6)
    if how == 6:
        return [value(random, depth + 1) for _ in range(random.randrange(3))]
    if how > 6:
        return {random.choice("zaq"): value(random, depth + 1) for _ in range(2)}
    return [random.choice(TEXTS), random.randrange(-5, 10**6), True, None,
            random.choice([.5, 1e-7, 2.0, 1e16]), "é"][how]


def call(random):
    function = {"name": random.choice(["add", "look_up"]),
                "arguments": {random.choice("xy"): value(random)
                              for _ in range(random.randrange(3))}}
    made = {"type": "function", "function": function}
    if random.random() < .5:
        made["id"] = random.choice(["abcdefghi", "call_1"])
    return made


def tool(random):
    names = random.sample(["city", "unit", "count"], random.randrange(0, 3))
    types = ["string", "integer", ["string", "null"]]
    return {"type": "function", "function": {
        "name": random.choice(["add", "look_up"]),
        "description": random.choice(TEXTS[:4]),
        "parameters": {
            "type": "object",
            "properties": {name: {"type": random.choice(types),
                                  "description": random.choice(TEXTS[:4])}
                           for name in names},
            "required": names[:1]}}}


def conversation(random):
    messages = []
    if random.random() < .4:
        messages.append({"role": "system", "content": content(random)})
    for _ in range(random.randrange(1, 4)):
        messages.append({"role": "user", "content": content(random)})
        answer = {"role": "assistant", "content": content(random)}
        if random.random() < .25:
            answer[random.choice(["reasoning_content", "reasoning", "thinking"])] \
                = random.choice(TEXTS)
        if random.random() < .25:
            answer["tool_calls"] = [call(random) for _ in range(random.randrange(1, 3))]
            messages.append(answer)
            messages.append({"role": "tool", "content": random.choice(TEXTS),
                             "name": "add"})
            answer = {"role": "assistant", "content": random.choice(TEXTS)}
        if random.random() < .15:
            answer["name"] = "x"
        messages.append(answer)
    if random.random() < .4:
        messages.pop()
    return messages


class Chats(RecordedSuite):
    name = "chats"
    needs = ("transformers", "tokenizers", "jinja2")

    def cases(self, random, count):
        return [self.case(random, NAMES[i % len(NAMES)]) for i in range(count)]

    def case(self, random, name):
        rows = []
        for _ in range(6):
            row = {"messages": conversation(random)}
            if random.random() < .4:
                row["tools"] = [tool(random) for _ in range(random.randrange(0, 3))]
            rows.append(row)
        tokens = {"eos_token": random.choice(["</s>", "<|endoftext|>"])}
        if random.random() < .8:
            tokens["bos_token"] = random.choice(["<s>", {
                "__type": "AddedToken", "content": "<s>", "lstrip": False, "rstrip": False,
                "normalized": True, "single_word": False}])
        return {"template": name, "form": random.choice(FORMS),
                "tokens": tokens, "rows": rows}

    def versions(self, case):
        return ("5",)  # 4 knows thoughts by one name only

    def write(self, case, folder):
        for name in ["vocab.json", "merges.txt"]:
            shutil.copy(ZOO_FIXTURES / "tokenizer_classes" / name, folder / name)
        config = {"tokenizer_class": "GPT2Tokenizer", **case["tokens"]}
        text, form = TEMPLATES[case["template"]], case["form"]
        named = [{"name": "default", "template": text}]
        if form == "string":
            config["chat_template"] = text
        elif form == "list":
            config["chat_template"] = named
        elif form == "tool_list":
            config["chat_template"] = [
                {"name": "tool_use", "template": TOOL_USE}, *named]
        elif form == "json":
            write_json(folder / "chat_template.json", {"chat_template": text})
            config["chat_template"] = text
        else:
            (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
        if form == "jinja_and_config":
            config["chat_template"] = "not this one"
        if form == "additional":
            path = folder / "additional_chat_templates/tool_use.jinja"
            path.parent.mkdir()
            path.write_text(TOOL_USE)
        write_json(folder / "config.json", {"model_type": "gpt2"})
        write_json(folder / "tokenizer_config.json", config)
        write_json_lines(folder / "rows.jsonl", case["rows"])

    def expected(self, case, folder):
        from transformers import AutoTokenizer
        from transformers.utils import chat_template_utils
        tokenizer = AutoTokenizer.from_pretrained(folder)
        answers = []
        for row in case["rows"]:
            def text(with_prompt):
                try:
                    return tokenizer.apply_chat_template(
                        row["messages"], tools=row.get("tools"), tokenize=False,
                        add_generation_prompt=with_prompt)
                except Exception:  # of whatever kind: a refusal
                    return None
            answer = {"prompt": text(True), "text": text(False)}
            used = tokenizer.get_chat_template(None, row.get("tools"))
            if "endgeneration" in used and answer["text"] is not None:
                _, ranges = chat_template_utils.render_jinja_template(
                    [[{key: value for key, value in message.items()
                       if value is not None} for message in row["messages"]]],
                    tools=row.get("tools"),
                    chat_template=used, return_assistant_tokens_mask=True,
                    add_generation_prompt=False,
                    **tokenizer.special_tokens_map)
                answer["answers"] = [
                    [len(answer["text"][:end].encode()) for end in pair]
                    for pair in ranges[0]]
            answers.append(answer)
        return {"rows": answers}

    def actual(self, case, folder, program):
        output, error = run_program(
            program.with_name("render_chats"), folder, folder / "rows.jsonl")
        if output is None:
            return {"refused": error}
        return {"rows": [json.loads(line) for line in output.splitlines()]}

    def difference(self, case, expected, actual):
        if "refused" in actual or "refused" in expected:
            return f"{actual}\n    expected {str(expected)[:300]}"
        lines = []
        for row, theirs, ours in zip(case["rows"], expected["rows"], actual["rows"]):
            wrong = [key for key in ("prompt", "text", "answers")
                     if key in theirs and theirs[key] != ours[key]]
            # Without marks answers are found by comparison, which may refuse.
            if "cannot be found" in ours.get("text_error", ""):
                wrong = [key for key in wrong if key != "text"]
            for key in wrong:
                lines.append(
                    f"\n    {json.dumps(row, ensure_ascii=False)[:600]}\n      {key}: "
                    f"{ours[key]!r} {ours.get(key + '_error', '')}\n      "
                    f"expected {theirs[key]!r}")
        return "".join(lines)


SUITE = Chats()
