// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/error.h"
#include "tessera/text/chat/jinja_lexer.h"
#include "tessera/text/chat/jinja_syntax.h"
#include "tessera/text/chat/jinja_text.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>

namespace tessera::text::jinja {

namespace {

/// Of expressions and of blocks; far above the needs of published templates,
/// and low enough for recursion.
constexpr int kMaxNesting = 150;

using Words = std::initializer_list<std::string_view>;

struct ComparisonName {
  std::string_view text;
  Comparison comparison;
};
constexpr std::array<ComparisonName, 6> kComparisons = {{
    {"==", Comparison::kEqual},
    {"!=", Comparison::kNotEqual},
    {"<", Comparison::kLess},
    {"<=", Comparison::kLessEqual},
    {">", Comparison::kGreater},
    {">=", Comparison::kGreaterEqual},
}};

struct BinaryName {
  std::string_view text;
  BinaryOperator operation;
};
constexpr std::array<BinaryName, 2> kSums = {{
    {"+", BinaryOperator::kAdd},
    {"-", BinaryOperator::kSubtract},
}};
constexpr std::array<BinaryName, 4> kProducts = {{
    {"*", BinaryOperator::kMultiply},
    {"/", BinaryOperator::kDivide},
    {"//", BinaryOperator::kFloorDivide},
    {"%", BinaryOperator::kModulo},
}};
constexpr std::array<BinaryName, 1> kPowers = {{
    {"**", BinaryOperator::kPower},
}};

/// Recursive descent, as Jinja's own parser: each function parses what its name
/// says and leaves the token after it.
class TemplateParser {
 public:
  explicit TemplateParser(std::string source)
      : tokens_(split_template(source)) {
    program_.source = std::move(source);
  }

  Program parse() {
    program_.body = block({});
    return std::move(program_);
  }

 private:
  // Tokens.

  const Token& token() const {
    return tokens_[at_];
  }
  const Token& token_after() const {
    return tokens_[std::min(at_ + 1, tokens_.size() - 1)];
  }
  void advance() {
    at_ += token().kind == TokenKind::kEnd ? 0 : 1;
  }
  bool is_operator(std::string_view text) const {
    return token().kind == TokenKind::kOperator && token().text == text;
  }
  static bool is_word(const Token& token, std::string_view text) {
    return token.kind == TokenKind::kName && token.text == text;
  }
  bool is_any_word(Words words) const {
    return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
      return is_word(token(), word);
    });
  }
  bool skip_operator(std::string_view text) {
    const bool found = is_operator(text);
    at_ += found ? 1 : 0;
    return found;
  }
  bool skip_word(std::string_view text) {
    const bool found = is_word(token(), text);
    at_ += found ? 1 : 0;
    return found;
  }

  [[noreturn]] static void fail(std::size_t offset, std::string message) {
    throw SyntaxFault{offset, std::move(message)};
  }
  std::string shown() const {
    switch (token().kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kData:
        return "text";
      default:
        return "'" + token().text + "'";
    }
  }
  [[noreturn]] void fail_unexpected(std::string_view expected) const {
    fail(
        token().offset,
        formatted("expected {}, but found {}", expected, shown()));
  }
  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) {
      fail_unexpected(formatted("'{}'", text));
    }
  }
  void expect(TokenKind kind, std::string_view expected) {
    if (token().kind != kind) {
      fail_unexpected(expected);
    }
    advance();
  }
  std::string expect_name() {
    if (token().kind != TokenKind::kName) {
      fail_unexpected("a name");
    }
    std::string name = token().text;
    advance();
    return name;
  }

  // Limits the recursion of this parser.
  class Nesting {
   public:
    explicit Nesting(TemplateParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) {
        fail(parser_.token().offset, too_deep());
      }
    }
    ~Nesting() {
      --parser_.nesting_;
    }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    TemplateParser& parser_;
  };

  static std::string too_deep() {
    return formatted(
        "the template is nested more than {} levels deep; simplify it, e.g. by {{% set %}}",
        kMaxNesting);
  }

  // Expressions.

  template <typename Form>
  static ExpressionPtr make(
      std::size_t offset,
      Form form,
      const std::vector<const Expression*>& children) {
    auto expression = std::make_unique<Expression>();
    expression->offset = offset;
    expression->form = std::move(form);
    for (const Expression* child : children) {
      if (child != nullptr) {
        expression->height = std::max(expression->height, child->height + 1);
      }
    }
    if (expression->height > kMaxNesting) {
      fail(offset, too_deep());
    }
    return expression;
  }

  static std::vector<const Expression*> all(
      const std::vector<ExpressionPtr>& items) {
    std::vector<const Expression*> result;
    result.reserve(items.size());
    for (const ExpressionPtr& item : items) {
      result.push_back(item.get());
    }
    return result;
  }

  static std::vector<const Expression*> all(
      const Expression* subject,
      const ArgumentExpressions& arguments) {
    std::vector<const Expression*> result = all(arguments.positional);
    for (const auto& argument : arguments.named) {
      result.push_back(argument.second.get());
    }
    result.push_back(subject);
    return result;
  }

  ExpressionPtr expression() {
    const Nesting nesting(*this);
    ExpressionPtr value = any_of();
    while (is_word(token(), "if")) {
      const std::size_t offset = token().offset;
      advance();
      ExpressionPtr condition = any_of();
      ExpressionPtr otherwise = skip_word("else") ? expression() : nullptr;
      const std::vector<const Expression*> children = {
          condition.get(), value.get(), otherwise.get()};
      value = make(
          offset,
          ConditionalExpression{
              std::move(condition), std::move(value), std::move(otherwise)},
          children);
    }
    return value;
  }

  ExpressionPtr any_of() {
    ExpressionPtr left = all_of();
    while (is_word(token(), "or")) {
      left = logical(LogicalOperator::kOr, std::move(left));
    }
    return left;
  }

  ExpressionPtr all_of() {
    ExpressionPtr left = negation();
    while (is_word(token(), "and")) {
      left = logical(LogicalOperator::kAnd, std::move(left));
    }
    return left;
  }

  ExpressionPtr logical(LogicalOperator operation, ExpressionPtr left) {
    const std::size_t offset = token().offset;
    advance();
    ExpressionPtr right =
        operation == LogicalOperator::kAnd ? negation() : all_of();
    const std::vector<const Expression*> children = {left.get(), right.get()};
    return make(
        offset,
        LogicalExpression{operation, std::move(left), std::move(right)},
        children);
  }

  ExpressionPtr negation() {
    if (is_word(token(), "not")) {
      return unary(UnaryOperator::kNot, [&] { return negation(); });
    }
    return comparison();
  }

  template <typename ParseOperand>
  ExpressionPtr unary(
      UnaryOperator operation,
      const ParseOperand& parse_operand) {
    const Nesting nesting(*this);
    const std::size_t offset = token().offset;
    advance();
    ExpressionPtr operand = parse_operand();
    const std::vector<const Expression*> children = {operand.get()};
    return make(
        offset, UnaryExpression{operation, std::move(operand)}, children);
  }

  std::optional<Comparison> skip_comparison() {
    for (const ComparisonName& known : kComparisons) {
      if (skip_operator(known.text)) {
        return known.comparison;
      }
    }
    if (skip_word("in")) {
      return Comparison::kIn;
    }
    if (is_word(token(), "not") && is_word(token_after(), "in")) {
      at_ += 2;
      return Comparison::kNotIn;
    }
    return std::nullopt;
  }

  ExpressionPtr comparison() {
    ComparisonExpression result{sum(), {}};
    std::vector<const Expression*> children = {result.first.get()};
    std::size_t offset = token().offset;
    while (const auto found = skip_comparison()) {
      result.others.emplace_back(*found, sum());
      children.push_back(result.others.back().second.get());
    }
    return result.others.empty() ? std::move(result.first)
                                 : make(offset, std::move(result), children);
  }

  template <std::size_t kCount, typename ParseOperand>
  ExpressionPtr binary(
      const std::array<BinaryName, kCount>& names,
      const ParseOperand& parse_operand) {
    ExpressionPtr left = parse_operand();
    while (true) {
      const auto* const found =
          std::find_if(names.begin(), names.end(), [&](const BinaryName& name) {
            return is_operator(name.text);
          });
      if (found == names.end()) {
        return left;
      }
      const std::size_t offset = token().offset;
      advance();
      ExpressionPtr right = parse_operand();
      const std::vector<const Expression*> children = {left.get(), right.get()};
      left = make(
          offset,
          BinaryExpression{found->operation, std::move(left), std::move(right)},
          children);
    }
  }

  ExpressionPtr sum() {
    return binary(kSums, [&] { return concatenation(); });
  }

  ExpressionPtr concatenation() {
    ConcatExpression result;
    result.parts.push_back(product());
    const std::size_t offset = token().offset;
    while (skip_operator("~")) {
      result.parts.push_back(product());
    }
    if (result.parts.size() == 1) {
      return std::move(result.parts.front());
    }
    const auto children = all(result.parts);
    return make(offset, std::move(result), children);
  }

  ExpressionPtr product() {
    return binary(kProducts, [&] {
      return binary(kPowers, [&] { return signed_value(true); });
    });
  }

  ExpressionPtr signed_value(bool takes_filters) {
    ExpressionPtr value;
    if (is_operator("-") || is_operator("+")) {
      value = unary(
          is_operator("-") ? UnaryOperator::kNegate : UnaryOperator::kPlus,
          [&] { return signed_value(false); });
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    return takes_filters ? filters_and_tests(std::move(value))
                         : std::move(value);
  }

  ExpressionPtr primary() {
    const Token& first = token();
    const auto constant = [&](Value value) {
      return make(first.offset, ConstantExpression{std::move(value)}, {});
    };
    switch (first.kind) {
      case TokenKind::kName:
        advance();
        if (first.text == "true" || first.text == "True") {
          return constant(true);
        }
        if (first.text == "false" || first.text == "False") {
          return constant(false);
        }
        if (first.text == "none" || first.text == "None") {
          return constant(None());
        }
        return make(first.offset, NameExpression{first.text}, {});
      case TokenKind::kString: {
        std::string text;
        while (token().kind == TokenKind::kString) {
          text += token().text;
          advance();
        }
        return constant(Value::text(std::move(text)));
      }
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        advance();
        return constant(number(first));
      default:
        break;
    }
    if (is_operator("(")) {
      advance();
      ExpressionPtr value = tuple(true, true);
      expect_operator(")");
      return value;
    }
    if (is_operator("[")) {
      return list();
    }
    if (is_operator("{")) {
      return dict();
    }
    fail_unexpected("an expression");
  }

  static Value number(const Token& token) {
    if (token.kind == TokenKind::kFloat) {
      return parse_float(token.text).value_or(0);
    }
    try {
      return parse_integer(token.text).value_or(0);
    } catch (const Error& error) {
      fail(token.offset, error.what());
    }
  }

  bool ends_tuple() const {
    return token().kind == TokenKind::kVariableEnd ||
           token().kind == TokenKind::kBlockEnd || is_operator(")");
  }

  /// An expression, or several with commas between them.
  ExpressionPtr tuple(bool takes_conditional, bool may_be_empty) {
    const Nesting nesting(*this);
    const std::size_t offset = token().offset;
    std::vector<ExpressionPtr> items;
    bool is_tuple = false;
    while (!ends_tuple()) {
      items.push_back(takes_conditional ? expression() : any_of());
      if (!is_operator(",")) {
        break;
      }
      is_tuple = true;
      advance();
    }
    if (!is_tuple && !items.empty()) {
      return std::move(items.front());
    }
    if (items.empty() && !may_be_empty) {
      fail_unexpected("an expression");
    }
    const auto children = all(items);
    return make(
        offset,
        SequenceExpression{SequenceKind::kTuple, std::move(items)},
        children);
  }

  ExpressionPtr list() {
    const std::size_t offset = token().offset;
    std::vector<ExpressionPtr> items;
    expect_operator("[");
    while (!is_operator("]")) {
      items.push_back(expression());
      if (!skip_operator(",")) {
        break;
      }
    }
    expect_operator("]");
    const auto children = all(items);
    return make(
        offset,
        SequenceExpression{SequenceKind::kList, std::move(items)},
        children);
  }

  ExpressionPtr dict() {
    const std::size_t offset = token().offset;
    DictExpression result;
    std::vector<const Expression*> children;
    expect_operator("{");
    while (!is_operator("}")) {
      ExpressionPtr key = expression();
      expect_operator(":");
      ExpressionPtr value = expression();
      children.push_back(key.get());
      children.push_back(value.get());
      result.items.emplace_back(std::move(key), std::move(value));
      if (!skip_operator(",")) {
        break;
      }
    }
    expect_operator("}");
    return make(offset, std::move(result), children);
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (true) {
      if (is_operator(".")) {
        value = attribute(std::move(value));
      } else if (is_operator("[")) {
        value = subscript(std::move(value));
      } else if (is_operator("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr filters_and_tests(ExpressionPtr value) {
    while (true) {
      if (is_operator("|")) {
        advance();
        value = filter(std::move(value));
      } else if (is_word(token(), "is")) {
        value = test(std::move(value));
      } else if (is_operator("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr attribute(ExpressionPtr object) {
    const std::size_t offset = token().offset;
    advance();
    const std::vector<const Expression*> children = {object.get()};
    if (token().kind == TokenKind::kInteger) {
      ExpressionPtr index = primary();
      return make(
          offset,
          SubscriptExpression{std::move(object), std::move(index)},
          children);
    }
    return make(
        offset,
        AttributeExpression{std::move(object), expect_name()},
        children);
  }

  ExpressionPtr subscript(ExpressionPtr object) {
    const std::size_t offset = token().offset;
    advance();
    const auto part = [&]() -> ExpressionPtr {
      return is_operator(":") || is_operator("]") || is_operator(",")
                 ? nullptr
                 : expression();
    };
    ExpressionPtr begin = part();
    if (is_operator(",") || (begin == nullptr && is_operator("]"))) {
      fail(
          token().offset,
          "a subscript takes one index or slice; write one, e.g. [0] or [1:]");
    }
    if (!skip_operator(":")) {
      expect_operator("]");
      const std::vector<const Expression*> children = {
          object.get(), begin.get()};
      return make(
          offset,
          SubscriptExpression{std::move(object), std::move(begin)},
          children);
    }
    ExpressionPtr end = part();
    ExpressionPtr step = skip_operator(":") ? part() : nullptr;
    expect_operator("]");
    const std::vector<const Expression*> children = {
        object.get(), begin.get(), end.get(), step.get()};
    return make(
        offset,
        SliceExpression{
            std::move(object),
            std::move(begin),
            std::move(end),
            std::move(step)},
        children);
  }

  ArgumentExpressions arguments() {
    const Nesting nesting(*this);
    ArgumentExpressions result;
    expect_operator("(");
    while (!is_operator(")")) {
      if (is_operator("*") || is_operator("**")) {
        fail(
            token().offset,
            "arguments of a call by * and ** are not implemented; write them one by one");
      }
      const bool is_named = token().kind == TokenKind::kName &&
                            token_after().kind == TokenKind::kOperator &&
                            token_after().text == "=";
      if (is_named) {
        std::string name = expect_name();
        advance();
        for (const auto& [other, value] : result.named) {
          if (other == name) {
            fail(
                token().offset,
                formatted("the argument '{}' is given twice", name));
          }
        }
        ExpressionPtr value = expression();
        result.named.emplace_back(std::move(name), std::move(value));
      } else if (result.named.empty()) {
        result.positional.push_back(expression());
      } else {
        fail(
            token().offset,
            "an argument without a name follows one with a name; put it first");
      }
      if (!skip_operator(",")) {
        break;
      }
    }
    expect_operator(")");
    return result;
  }

  ExpressionPtr call(ExpressionPtr callee) {
    const std::size_t offset = token().offset;
    ArgumentExpressions given = arguments();
    const auto children = all(callee.get(), given);
    return make(
        offset, CallExpression{std::move(callee), std::move(given)}, children);
  }

  /// After "|".
  ExpressionPtr filter(ExpressionPtr subject) {
    const std::size_t offset = token().offset;
    std::string name = expect_name();
    ArgumentExpressions given;
    if (is_operator("(")) {
      given = arguments();
    }
    const auto children = all(subject.get(), given);
    return make(
        offset,
        FilterExpression{std::move(subject), std::move(name), std::move(given)},
        children);
  }

  bool starts_test_argument() const {
    switch (token().kind) {
      case TokenKind::kName:
        return !is_any_word({"else", "or", "and"});
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        return true;
      default:
        return is_operator("[") || is_operator("{");
    }
  }

  ExpressionPtr test(ExpressionPtr subject) {
    advance();
    const std::size_t offset = token().offset;
    const bool is_negated = skip_word("not");
    std::string name = expect_name();
    ArgumentExpressions given;
    if (is_operator("(")) {
      given = arguments();
    } else if (starts_test_argument()) {
      if (is_word(token(), "is")) {
        fail(token().offset, "tests cannot be chained; join them by 'and'");
      }
      const Nesting nesting(*this);
      given.positional.push_back(postfix(primary()));
    }
    const auto children = all(subject.get(), given);
    ExpressionPtr result = make(
        offset,
        TestExpression{std::move(subject), std::move(name), std::move(given)},
        children);
    if (!is_negated) {
      return result;
    }
    const std::vector<const Expression*> negated = {result.get()};
    return make(
        offset,
        UnaryExpression{UnaryOperator::kNot, std::move(result)},
        negated);
  }

  // Statements.

  /// Statements until a tag of `ends`, or of the template; the tag's name is
  /// the next token.
  Block block(Words ends) {
    const Nesting nesting(*this);
    Block result;
    while (token().kind != TokenKind::kEnd) {
      const std::size_t offset = token().offset;
      if (token().kind == TokenKind::kData) {
        result.push_back({offset, DataStatement{token().text}});
        advance();
      } else if (token().kind == TokenKind::kVariableBegin) {
        advance();
        ExpressionPtr value = tuple(true, false);
        result.push_back({offset, OutputStatement{std::move(value)}});
        expect(TokenKind::kVariableEnd, "'}}'");
      } else {
        expect(TokenKind::kBlockBegin, "a tag");
        if (is_any_word(ends)) {
          return result;
        }
        result.push_back(statement(offset));
        expect(TokenKind::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() > 0) {
      fail_unexpected(formatted("{{% {} %}}", *(ends.end() - 1)));
    }
    return result;
  }

  /// The body of a statement, after its tag's last expression.
  Block body(Words ends) {
    skip_operator(":");
    expect(TokenKind::kBlockEnd, "'%}'");
    return block(ends);
  }

  /// One whose only end is `end`, which is skipped.
  Block full_body(std::string_view end) {
    Block result = body({end});
    advance();
    return result;
  }

  /// Jinja compiles these bodies to functions, which a loop around them cannot
  /// leave.
  Block function_body(std::string_view end) {
    const int loops = loops_;
    loops_ = 0;
    Block result = full_body(end);
    loops_ = loops;
    return result;
  }

  Statement statement(std::size_t offset) {
    struct Tag {
      std::string_view name;
      Statement (TemplateParser::*parse)(std::size_t offset);
    };
    static constexpr std::array<Tag, 10> kTags = {{
        {"if", &TemplateParser::if_statement},
        {"for", &TemplateParser::for_statement},
        {"set", &TemplateParser::set_statement},
        {"macro", &TemplateParser::macro_statement},
        {"call", &TemplateParser::call_block},
        {"filter", &TemplateParser::filter_block},
        {"with", &TemplateParser::with_statement},
        {"generation", &TemplateParser::generation_statement},
        {"break", &TemplateParser::break_statement},
        {"continue", &TemplateParser::continue_statement},
    }};
    const std::size_t name_offset = token().offset;
    const std::string name = expect_name();
    for (const Tag& tag : kTags) {
      if (tag.name == name) {
        return (this->*tag.parse)(offset);
      }
    }
    if (name.starts_with("end") || name == "else" || name == "elif") {
      fail(
          name_offset,
          formatted("{{% {} %}} closes nothing that is open here", name));
    }
    fail(
        name_offset,
        formatted(
            "the tag {{% {} %}} is not implemented; known are if, for, set, macro, call, filter, with, raw, generation, break and continue",
            name));
  }

  Statement if_statement(std::size_t offset) {
    IfStatement result;
    do {
      ExpressionPtr condition = tuple(false, false);
      Block then = body({"elif", "else", "endif"});
      result.branches.emplace_back(std::move(condition), std::move(then));
    } while (skip_word("elif"));
    if (skip_word("else")) {
      result.otherwise = full_body("endif");
    } else {
      advance();
    }
    return {offset, std::move(result)};
  }

  Statement for_statement(std::size_t offset) {
    ForStatement result;
    result.target = target(false);
    if (!skip_word("in")) {
      fail_unexpected("'in'");
    }
    result.iterable = tuple(false, false);
    if (skip_word("if")) {
      result.condition = expression();
    }
    if (is_word(token(), "recursive")) {
      fail(
          token().offset,
          "recursive loops are not implemented; use a macro that calls itself");
    }
    ++loops_;
    result.body = body({"else", "endfor"});
    --loops_;
    if (skip_word("else")) {
      result.otherwise = full_body("endfor");
    } else {
      advance();
    }
    return {offset, std::move(result)};
  }

  Statement set_statement(std::size_t offset) {
    Target assigned = target(true);
    if (skip_operator("=")) {
      ExpressionPtr value = tuple(true, false);
      return {offset, SetStatement{std::move(assigned), std::move(value)}};
    }
    ExpressionPtr filter = is_operator("|") ? block_filter() : nullptr;
    Block content = full_body("endset");
    return {
        offset,
        SetBlockStatement{
            std::move(assigned), std::move(filter), std::move(content)}};
  }

  /// "| a | b", whose subject is the text of a block.
  ExpressionPtr block_filter() {
    ExpressionPtr result;
    while (skip_operator("|")) {
      result = filter(std::move(result));
    }
    return result;
  }

  MacroDefinition signature(std::string name) {
    MacroDefinition macro;
    macro.name = std::move(name);
    expect_operator("(");
    while (!is_operator(")")) {
      const std::size_t offset = token().offset;
      Parameter parameter{expect_name(), nullptr};
      if (skip_operator("=")) {
        parameter.standard = expression();
      } else if (
          !macro.parameters.empty() &&
          macro.parameters.back().standard != nullptr) {
        fail(
            offset,
            "a parameter without a default follows one with a default; put it first");
      }
      for (const Parameter& other : macro.parameters) {
        if (other.name == parameter.name) {
          fail(
              offset,
              formatted("two parameters have the name '{}'", other.name));
        }
      }
      macro.parameters.push_back(std::move(parameter));
      if (!is_operator(")")) {
        expect_operator(",");
      }
    }
    expect_operator(")");
    return macro;
  }

  Statement macro_statement(std::size_t offset) {
    MacroDefinition macro = signature(expect_name());
    macro.body = function_body("endmacro");
    return {offset, MacroStatement{std::move(macro)}};
  }

  Statement call_block(std::size_t offset) {
    CallBlockStatement result;
    if (is_operator("(")) {
      result.caller = signature("caller");
    }
    result.caller.name = "caller";
    result.call = expression();
    if (!std::holds_alternative<CallExpression>(result.call->form)) {
      fail(offset, "{% call %} needs a call of a macro, e.g. box('title')");
    }
    result.caller.body = function_body("endcall");
    return {offset, std::move(result)};
  }

  Statement filter_block(std::size_t offset) {
    ExpressionPtr filters = filter(nullptr);
    while (skip_operator("|")) {
      filters = filter(std::move(filters));
    }
    Block content = full_body("endfilter");
    return {
        offset, FilterBlockStatement{std::move(filters), std::move(content)}};
  }

  Statement with_statement(std::size_t offset) {
    WithStatement result;
    while (token().kind != TokenKind::kBlockEnd) {
      Target assigned = single_target(false);
      expect_operator("=");
      ExpressionPtr value = expression();
      result.variables.emplace_back(std::move(assigned), std::move(value));
      if (!skip_operator(",")) {
        break;
      }
    }
    result.body = full_body("endwith");
    return {offset, std::move(result)};
  }

  Statement generation_statement(std::size_t offset) {
    program_.has_generation = true;
    return {offset, GenerationStatement{function_body("endgeneration")}};
  }

  Statement break_statement(std::size_t offset) {
    check_in_loop(offset);
    return {offset, BreakStatement{}};
  }

  Statement continue_statement(std::size_t offset) {
    check_in_loop(offset);
    return {offset, ContinueStatement{}};
  }

  void check_in_loop(std::size_t offset) const {
    if (loops_ == 0) {
      fail(
          offset,
          "{% break %} and {% continue %} are only known in a loop, and not in a macro, call or generation block within it");
    }
  }

  // Targets of assignments.

  Target single_target(bool takes_attribute) {
    if (is_operator("(")) {
      const Nesting nesting(*this);
      advance();
      Target inner = target(false);
      expect_operator(")");
      return inner;
    }
    Target result;
    result.offset = token().offset;
    result.name = expect_name();
    static constexpr std::array<std::string_view, 6> kConstants = {
        "true", "True", "false", "False", "none", "None"};
    if (std::find(kConstants.begin(), kConstants.end(), result.name) !=
        kConstants.end()) {
      fail(
          result.offset,
          formatted("'{}' cannot be assigned to; use a name", result.name));
    }
    if (is_operator(".") && takes_attribute) {
      advance();
      result.attribute = expect_name();
    }
    if (result.name == "loop" && result.attribute.empty()) {
      fail(
          result.offset, "'loop' is the loop's own variable; use another name");
    }
    return result;
  }

  Target target(bool takes_attribute) {
    Target first = single_target(takes_attribute);
    if (!is_operator(",")) {
      return first;
    }
    Target result;
    result.offset = first.offset;
    result.elements.push_back(std::move(first));
    while (skip_operator(",")) {
      if (token().kind != TokenKind::kName && !is_operator("(")) {
        break;
      }
      if (is_word(token(), "in")) {
        break;
      }
      result.elements.push_back(single_target(takes_attribute));
    }
    return result;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0; ///< around the statement, in its function
  Program program_;
};

} // namespace

Program parse_program(std::string_view text, const std::string& place) {
  std::string storage;
  TESSERA_CHECK(
      valid_utf8(text, storage).data() == text.data(),
      "{} is not valid UTF-8; convert it",
      place);
  std::string source = normalized_source(text);
  try {
    return TemplateParser(source).parse();
  } catch (const SyntaxFault& fault) {
    TESSERA_FAIL(
        "{}: {}", place_in(source, place, fault.offset), fault.message);
  }
}

std::string place_in(
    std::string_view source,
    const std::string& place,
    std::size_t offset) {
  const std::string_view before = source.substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t line_begin = before.rfind('\n') + 1; // npos + 1 is 0
  return formatted(
      "{}:{}:{}",
      place,
      line,
      count_code_points(before.substr(line_begin)) + 1);
}

} // namespace tessera::text::jinja
