// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/chat_template.h"

#include "support/expect_error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "zoo/support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <ctime>
#include <random>
#include <utility>
#include <vector>

namespace tessera::text::chat_template_test {
namespace {

using Json = nlohmann::ordered_json;
using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

const Json& reference() {
  static const Json kReference =
      Json::parse(runtime::read_text_file(fixture("chat_templates.json")));
  return kReference;
}

std::time_t reference_time() {
  const Json& time = reference().at("time");
  std::tm local{};
  local.tm_year = time[0].get<int>() - 1900;
  local.tm_mon = time[1].get<int>() - 1;
  local.tm_mday = time[2].get<int>();
  local.tm_hour = time[3].get<int>();
  local.tm_min = time[4].get<int>();
  local.tm_sec = time[5].get<int>();
  local.tm_isdst = -1;
  return std::mktime(&local);
}

ChatTemplateOptions reference_options(const Json& given) {
  ChatTemplateOptions options;
  options.add_generation_prompt = given.value("add_generation_prompt", false);
  options.tools = given.value("tools", Json());
  options.documents = given.value("documents", Json());
  options.variables = given.value("variables", Json::object());
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  options.now = reference_time();
  return options;
}

/// The text, or null if it is refused.
Json rendered(
    const std::string& text,
    const Json& messages,
    const ChatTemplateOptions& options) {
  try {
    return ChatTemplate(text, "template").render(messages, options);
  } catch (const Error&) {
    return nullptr;
  }
}

Ranges ranges_of(const RenderedChat& chat) {
  Ranges ranges;
  for (const ByteRange& range : chat.answers) {
    ranges.emplace_back(range.begin, range.end);
  }
  return ranges;
}

std::vector<std::string> answers_of(const RenderedChat& chat) {
  std::vector<std::string> answers;
  for (const ByteRange& range : chat.answers) {
    answers.push_back(chat.text.substr(range.begin, range.size()));
  }
  return answers;
}

std::string error_of(
    const std::string& text,
    const Json& messages = Json::array(),
    const ChatTemplateOptions& options = {}) {
  return tessera::error_of(
      [&] { ChatTemplate(text, "chat.jinja").render(messages, options); });
}

const Json kTwoTurns = Json::parse(R"([
  {"role": "user", "content": "Hi"},
  {"role": "assistant", "content": "Hello ü"},
  {"role": "user", "content": "Bye"},
  {"role": "assistant", "content": "See you"}])");

} // namespace

TEST(ChatTemplate, RendersEveryFamilyAsTransformersDoes) {
  int rendered_cases = 0;
  for (const Json& wanted : reference().at("cases")) {
    const std::string name = wanted.at("template");
    const std::string text = reference().at("templates").at(name);
    const Json& messages = reference()
                               .at("conversations")
                               .at(wanted.at("conversation").get<int>());
    const Json& options =
        reference().at("options").at(wanted.at("options").get<int>());
    EXPECT_EQ(
        rendered(text, messages, reference_options(options)), wanted.at("text"))
        << name << " " << messages << " " << options;
    rendered_cases += wanted.at("text").is_null() ? 0 : 1;
  }
  EXPECT_GT(rendered_cases, 300);
}

TEST(ChatTemplate, HasPythonsSemantics) {
  ChatTemplateOptions options =
      reference_options({{"variables", reference().at("variables")}});
  for (const Json& wanted : reference().at("snippets")) {
    EXPECT_EQ(
        rendered(wanted.at("template"), Json::array(), options),
        wanted.at("text"))
        << wanted.at("template");
  }
}

// transformers 5.24: _alias_reasoning_fields().
TEST(ChatTemplate, ReadsThoughtsUnderEachOfTheirNames) {
  const ChatTemplate shown(
      "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m | list | join(',') }};{% endfor %}",
      "names");
  const auto rendered = [&](const char* messages) {
    return shown.render(nlohmann::ordered_json::parse(messages));
  };
  EXPECT_EQ(
      rendered(R"([{"role": "a", "reasoning": "r"}])"),
      "r|r|thinking,role,reasoning,reasoning_content;");
  EXPECT_EQ(
      rendered(R"([{"role": "a", "thinking": "t", "reasoning": "r"}])"),
      "t|t|thinking,role,reasoning,reasoning_content;");
  EXPECT_EQ(
      rendered(R"([{"reasoning_content": "c", "role": "a", "thinking": "t"}])"),
      "c|t|thinking,reasoning_content,role;");
  EXPECT_EQ(
      rendered(R"([{"role": "a", "reasoning": null}])"), "||role,reasoning;");
}

TEST(ChatTemplate, FindsMarkedAnswersAsTransformersDoes) {
  int answers = 0;
  for (const Json& wanted : reference().at("cases")) {
    if (!wanted.contains("answers")) {
      continue;
    }
    const ChatTemplate chat(
        reference()
            .at("templates")
            .at(wanted.at("template").get<std::string>())
            .get<std::string>(),
        "template");
    const RenderedChat found = chat.render_with_marked_answers(
        reference()
            .at("conversations")
            .at(wanted.at("conversation").get<int>()),
        reference_options(
            reference().at("options").at(wanted.at("options").get<int>())));
    EXPECT_EQ(Json(ranges_of(found)), wanted.at("answers"));
    answers += static_cast<int>(found.answers.size());
  }
  EXPECT_GT(answers, 20);
}

TEST(ChatTemplate, FindsAnswersByComparison) {
  const auto& templates = reference().at("templates");
  const ChatTemplate chat(templates.at("chatml").get<std::string>(), "chatml");
  EXPECT_FALSE(chat.has_generation_blocks());
  const RenderedChat found = chat.render_with_compared_answers(kTwoTurns);
  EXPECT_EQ(found.text, chat.render(kTwoTurns));
  EXPECT_THAT(
      answers_of(found),
      testing::ElementsAre("Hello ü<|im_end|>\n", "See you<|im_end|>\n"));

  // With the marks, the same without the end of the line.
  const ChatTemplate marked(
      templates.at("chatml_marked").get<std::string>(), "marked");
  EXPECT_TRUE(marked.has_generation_blocks());
  EXPECT_THAT(
      answers_of(marked.render_with_marked_answers(kTwoTurns)),
      testing::ElementsAre("Hello ü<|im_end|>", "See you<|im_end|>"));
  EXPECT_EQ(marked.render(kTwoTurns), found.text);
}

TEST(ChatTemplate, RefusesToCompareWhereEarlierTextChanges) {
  const Json thoughts = Json::parse(R"([
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "<think>x</think>b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"}])");
  const ChatTemplate chat(
      reference().at("templates").at("im_thoughts").get<std::string>(),
      "thoughts.jinja");
  try {
    chat.render_with_compared_answers(thoughts);
    FAIL() << "earlier thoughts are removed";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(),
        testing::AllOf(
            testing::HasSubstr("thoughts.jinja: the answer messages[1]"),
            testing::HasSubstr("{% generation %}")));
  }
  EXPECT_THROW(chat.render_with_marked_answers(thoughts), Error);
}

TEST(ChatTemplate, RefusesMarkedAnswersWhosePlaceIsUnknown) {
  const std::string text =
      "{% macro m() %}{% generation %}a{% endgeneration %}{% endmacro %}{{ m() }}";
  const ChatTemplate chat(text, "m.jinja");
  EXPECT_EQ(chat.render(Json::array()), "a");
  EXPECT_THROW(chat.render_with_marked_answers(Json::array()), Error);
}

TEST(ChatTemplate, ErrorsNamePlaceConstructAndRemedy) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\n  {% include 'x' %}",
       "chat.jinja:2:6: the tag {% include %} is not"},
      {"ü{{ x | nosuch }}", "chat.jinja:1:9: the filter 'nosuch' is not impl"},
      {"{{ x is nosuch }}", "chat.jinja:1:9: the test 'nosuch' is not impl"},
      {"{{ 'a'.zfill(3) }}", "1:13: the method 'zfill' of a value of type str"},
      {"{{ f(*x) }}", "chat.jinja:1:6: arguments of a call by * and **"},
      {"{% for a in x recursive %}", "1:15: recursive loops are not"},
      {"{{ messages[0].content }}", "'list object' has no element 0; test it"},
      {"{{ m.x }}", "chat.jinja:1:5: 'm' is undefined; test it first"},
      {"{{ [].append(1) }}",
       "'append' would change a list, which is forbidden"},
      {"\n{{ raise_exception('no ' ~ 1) }}", "chat.jinja:2:19: no 1"},
      {"{{ 2 ** 64 }}", "an integer needs more than 64 bits"},
      {"{% if 1 %}", "expected {% endif %}, but found the end"},
      {"{{ 'a }}", "chat.jinja:1:4: a string has no end"},
      {"{{ 012 }}", "chat.jinja:1:4: a number is not decimal"},
      {"{{ strftime_now('%f') }}", "directive that is not implemented"},
      {"{{ ('<'|safe).strip() }}", "remove |safe"},
      {"{{ '{:>3}'.format(1) }}", "the field {:>3} is not implemented"},
      {"\xff", "chat.jinja is not valid UTF-8"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(error_of(text), testing::HasSubstr(message)) << text;
  }
  EXPECT_THAT(
      error_of("", Json::parse(R"({"role": "user"})")),
      testing::HasSubstr("messages is not an array"));
  EXPECT_THAT(
      error_of("", Json::parse("[[]]")),
      testing::HasSubstr("messages[0] is not an object"));
  EXPECT_THAT(
      error_of("", Json::parse(R"([{"a": {"b": 18446744073709551615}}])")),
      testing::HasSubstr("messages[0].a.b is 18446744073709551615"));
  EXPECT_THAT(
      error_of("", {{{"content", "\xff"}}}),
      testing::HasSubstr("messages[0].content is not valid UTF-8"));
}

// Whatever a template does, it ends with an error.
TEST(ChatTemplate, LimitsHostileTemplates) {
  const auto nested = [](const std::string& open, const std::string& close) {
    std::string text = "{{ ";
    for (int i = 0; i < 50'000; ++i) {
      text += open;
    }
    text += "1";
    for (int i = 0; i < 50'000; ++i) {
      text += close;
    }
    return text + " }}";
  };
  std::string ifs;
  std::string sum = "{{ 1";
  std::string elifs = "{% if x %}";
  for (int i = 0; i < 50'000; ++i) {
    ifs += "{% if 1 %}";
    sum += "+1";
    elifs += "{% elif x %}";
  }
  const std::string loops =
      "{% for a in range(99999) %}{% for b in range(99999) %}"
      "{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}";
  const std::vector<std::string> texts = {
      nested("(", ")"),
      nested("[", "]"),
      nested("{1:", "}"),
      nested("not ", ""),
      nested("-", ""),
      nested("x[", "]"),
      nested("x(", ")"),
      nested("1 if 1 else ", ""),
      nested("1 ** ", ""),
      ifs,
      sum + " }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}",
      "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
      loops,
      "{% set ns = namespace(s='a') %}{% for i in range(99) %}"
      "{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}"
      "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
      "{% set ns = namespace(s=[]) %}{% for i in range(90) %}"
      "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s == [ns.s[0], ns.s[1]] }}"
      "{{ ns.s | tojson }}",
      "{% set ns = namespace(s={}) %}{% for i in range(999) %}"
      "{% set ns.s = {'a': ns.s} %}{% endfor %}",
      "{{ 'a' * 99999999999 }}",
      "{{ [1] * 99999999999 }}",
      "{{ 'a' * 9999999 | replace('a', 'a' * 999999) }}",
      "{{ ('a' * 999999) | replace('', 'b' * 999999) }}",
      "{{ 'a' | indent(99999999999) }}",
      "{{ [1] | tojson(indent=99999999999) }}",
      "{{ [1] | batch(99999999999, 1) | list }}",
      "{{ range(-9223372036854775807, 9223372036854775807) }}",
      "{% set x = 'a' * 9999999 %}{{ x.find('a' * 4999999 + 'b') }}",
      "{% set x = 'a' * 9999999 %}{{ ('a' * 4999999 + 'b') in x }}",
      "{% set x = 'a' * 999999 %}{{ x | trim('b' * 999999 + 'a') }}",
      "{% set x = 'a' * 9999999 %}{% for i in range(99999) %}"
      "{{ x is upper }}{{ x ~ 'a' == x }}{{ x[0] }}{% endfor %}",
      "{{ ((' ' * 999999) | list) | join(' ' * 999999) }}",
      "{{ (-9223372036854775807 - 1) // -1 }}",
      "{{ -(-9223372036854775807 - 1) }}",
      "{{ (-9223372036854775807 - 1) | abs }}",
      "{{ ('9' * 99) | int }}",
      "{{ 1e300 | int }}",
      "{{ '1e999' | float | int }}{{ x.y }}",
  };
  ChatTemplateOptions options;
  options.max_steps = 300'000;
  options.max_bytes = std::int64_t{1} << 27;
  for (const std::string& text : texts) {
    EXPECT_NE(error_of(text, Json::array(), options), "")
        << text.substr(0, 200);
  }
  EXPECT_EQ(error_of(elifs + "{% endif %}"), "");
  // A namespace that contains itself, and a macro that is part of its scope.
  EXPECT_EQ(
      error_of("{% set ns = namespace() %}{% set ns.a = [ns] %}"
               "{% macro m() %}{% macro k() %}{% endmacro %}{% set ns.k = k %}"
               "{% endmacro %}{{ m() }}{% for i in [1] %}{% set ns.l = loop %}"
               "{% endfor %}{% set n2 = namespace(p=ns) %}{% set ns.q = n2 %}"),
      "");
  Json deep = Json::array();
  for (int i = 0; i < 5000; ++i) {
    deep = Json::array({std::move(deep)});
  }
  EXPECT_THAT(
      error_of("", Json::array({{{"content", std::move(deep)}}})),
      testing::HasSubstr("nested more than"));
}

// Damaged templates render or are refused; sanitizers see the rest.
TEST(ChatTemplate, SurvivesRandomChanges) {
  std::vector<std::string> texts;
  for (const auto& [name, text] : reference().at("templates").items()) {
    texts.push_back(text.get<std::string>());
  }
  for (const Json& snippet : reference().at("snippets")) {
    texts.push_back(snippet.at("template").get<std::string>());
  }
  const std::array<std::string, 24> parts = {
      "{{",  "}}", "{%", "%}", "-",   "|",        "(",       ")",
      "[",   "]",  "{",  "}",  "'",   " if ",     " else ",  "loop",
      "not", ".",  ",",  "~",  "**2", " endfor ", "9999999", "messages"};
  std::mt19937 random(20250709); // NOLINT: the same cases every time.
  const auto below = [&](std::size_t count) {
    return static_cast<std::size_t>(random()) % std::max<std::size_t>(count, 1);
  };
  ChatTemplateOptions options =
      reference_options({{"variables", reference().at("variables")}});
  options.max_steps = 20'000;
  options.max_bytes = 1 << 20;
  const char* rounds_set = std::getenv("TESSERA_CHAT_TEMPLATE_ROUNDS");
  const int rounds = rounds_set == nullptr ? 3000 : std::atoi(rounds_set);
  int rendered_count = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string text = texts[below(texts.size())];
    const std::string& other = texts[below(texts.size())];
    for (std::size_t change = below(4) + 1; change > 0; --change) {
      const std::size_t at = below(text.size() + 1);
      switch (below(5)) {
        case 0:
          text.erase(at, below(8) + 1);
          break;
        case 1:
          text.insert(at, parts[below(parts.size())]);
          break;
        case 2:
          text.insert(at, other.substr(below(other.size()), below(30)));
          break;
        case 3:
          text.insert(at, 1, static_cast<char>(below(256)));
          break;
        default:
          text.replace(at, below(6), parts[below(parts.size())]);
      }
    }
    const Json& conversations = reference().at("conversations");
    const Json& messages = conversations.at(below(conversations.size()));
    rendered_count += rendered(text, messages, options).is_null() ? 0 : 1;
  }
  EXPECT_GT(rendered_count, rounds / 20);
}

} // namespace tessera::text::chat_template_test
