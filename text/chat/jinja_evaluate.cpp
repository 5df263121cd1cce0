// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/jinja_evaluate.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/chat/jinja_filters.h"
#include "tessera/text/chat/jinja_members.h"
#include "tessera/text/chat/jinja_operators.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <unordered_map>

namespace tessera::text::jinja {

/// The variables of the template, a loop's iteration, a macro's call, ...
struct Scope {
  std::shared_ptr<Scope> parent;
  std::unordered_map<std::string, Value> variables;
};

struct Macro {
  const MacroDefinition* definition = nullptr;
  std::shared_ptr<Scope> scope; ///< where it was defined
};

namespace {

/// Of evaluations within evaluations, through macros too: what the stack of a
/// thread takes.
constexpr int kMaxEvaluationDepth = 1000;

/// As in Jinja's sandbox.
constexpr std::int64_t kMaxRange = 100'000;

enum class Flow { kNormal, kBreak, kContinue };

class Evaluator {
 public:
  Evaluator(const EvaluationOptions& options, Budget& budget)
      : options_(options), budget_(budget), scope_(std::make_shared<Scope>()) {
    for (const auto& [name, value] : options.variables) {
      scope_->variables.insert_or_assign(name, value);
    }
    // Template variables hide those of the caller, but not for good.
    scope_ = std::make_shared<Scope>(Scope{scope_, {}});
  }

  /// What a template can change may contain itself.
  ~Evaluator() {
    for (const auto& space : spaces_) {
      space->attributes.clear();
    }
    for (const auto& scope : captured_) {
      scope->variables.clear();
    }
  }
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  Rendering run(const Program& program) {
    execute(program.body);
    return {std::move(output_), std::move(generated_)};
  }

  /// Of what is being evaluated.
  std::size_t offset() const {
    return offset_;
  }

 private:
  class Depth {
   public:
    explicit Depth(Evaluator& evaluator) : depth_(evaluator.depth_) {
      evaluator.budget_.spend_steps();
      TESSERA_CHECK(
          depth_ < kMaxEvaluationDepth,
          "macros call each other more deeply than is implemented ({} levels); end the recursion",
          kMaxEvaluationDepth);
      ++depth_;
    }
    ~Depth() {
      --depth_;
    }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    int& depth_;
  };

  /// Replaces the scope while it lives.
  class ScopeChange {
   public:
    ScopeChange(Evaluator& evaluator, std::shared_ptr<Scope> scope)
        : scope_(evaluator.scope_), before_(std::move(scope)) {
      std::swap(scope_, before_);
    }
    ~ScopeChange() {
      std::swap(scope_, before_);
    }
    ScopeChange(const ScopeChange&) = delete;
    ScopeChange& operator=(const ScopeChange&) = delete;

   private:
    std::shared_ptr<Scope>& scope_;
    std::shared_ptr<Scope> before_;
  };

  static std::shared_ptr<Scope> scope_within(std::shared_ptr<Scope> parent) {
    return std::make_shared<Scope>(Scope{std::move(parent), {}});
  }

  // Variables.

  const Value* variable(const std::string& name) const {
    for (const Scope* scope = scope_.get(); scope != nullptr;
         scope = scope->parent.get()) {
      const auto found = scope->variables.find(name);
      if (found != scope->variables.end()) {
        return &found->second;
      }
    }
    return nullptr;
  }

  void assign(const Target& target, Value value) {
    if (!target.elements.empty()) {
      offset_ = target.offset;
      std::vector<Value> items = elements(value, budget_);
      TESSERA_CHECK(
          items.size() == target.elements.size(),
          "{} values cannot be assigned to {} names",
          items.size(),
          target.elements.size());
      for (std::size_t i = 0; i < items.size(); ++i) {
        assign(target.elements[i], std::move(items[i]));
      }
      return;
    }
    if (target.attribute.empty()) {
      scope_->variables.insert_or_assign(target.name, std::move(value));
      return;
    }
    offset_ = target.offset;
    const Value* found = variable(target.name);
    const auto* space = found == nullptr
                            ? nullptr
                            : found->get_if<std::shared_ptr<Namespace>>();
    TESSERA_CHECK(
        space != nullptr,
        "'{}' is no namespace, so that its attribute '{}' cannot be set; make it by namespace()",
        target.name,
        target.attribute);
    (*space)->attributes.insert_or_assign(target.attribute, std::move(value));
  }

  // Output.

  void write(std::string_view text) {
    budget_.spend_bytes(text.size());
    output_ += text;
  }

  /// What the block writes, in a scope of its own.
  std::string captured(const Block& block, std::shared_ptr<Scope> scope) {
    std::string before = std::move(output_);
    output_.clear();
    ++captures_;
    {
      const ScopeChange change(*this, std::move(scope));
      execute(block);
    }
    --captures_;
    std::swap(before, output_);
    return before;
  }

  // Statements.

  Flow execute(const Block& block) {
    for (const Statement& statement : block) {
      const Depth depth(*this);
      offset_ = statement.offset;
      const Flow flow = std::visit(
          [this](const auto& form) { return execute_form(form); },
          statement.form);
      if (flow != Flow::kNormal) {
        return flow;
      }
    }
    return Flow::kNormal;
  }

  Flow execute_form(const DataStatement& data) {
    write(data.text);
    return Flow::kNormal;
  }

  Flow execute_form(const OutputStatement& output) {
    const Value value = evaluate(*output.value);
    offset_ = output.value->offset;
    write(to_text(value, budget_));
    return Flow::kNormal;
  }

  Flow execute_form(const IfStatement& statement) {
    for (const auto& [condition, block] : statement.branches) {
      if (is_truthy(evaluate(*condition))) {
        return execute(block);
      }
    }
    return execute(statement.otherwise);
  }

  std::vector<Value> loop_items(const ForStatement& loop) {
    const Value iterable = evaluate(*loop.iterable);
    offset_ = loop.iterable->offset;
    std::vector<Value> items = elements(iterable, budget_);
    if (loop.condition == nullptr) {
      return items;
    }
    std::vector<Value> accepted;
    for (Value& item : items) {
      const ScopeChange change(*this, scope_within(scope_));
      assign(loop.target, item);
      if (is_truthy(evaluate(*loop.condition))) {
        accepted.push_back(std::move(item));
      }
    }
    return accepted;
  }

  Flow execute_form(const ForStatement& statement) {
    const auto loop = std::make_shared<Loop>();
    loop->items = loop_items(statement);
    loop->depth = Value::list(loop->items).depth();
    for (; loop->index < loop->items.size(); ++loop->index) {
      const ScopeChange change(*this, scope_within(scope_));
      scope_->variables.emplace("loop", loop);
      assign(statement.target, loop->items[loop->index]);
      if (execute(statement.body) == Flow::kBreak) {
        return Flow::kNormal;
      }
    }
    if (loop->items.empty()) {
      const ScopeChange change(*this, scope_within(scope_));
      return execute(statement.otherwise);
    }
    return Flow::kNormal;
  }

  Flow execute_form(const SetStatement& statement) {
    assign(statement.target, evaluate(*statement.value));
    return Flow::kNormal;
  }

  Flow execute_form(const SetBlockStatement& statement) {
    Value value = Value::text(captured(statement.body, scope_within(scope_)));
    if (statement.filter != nullptr) {
      value = filtered_block(*statement.filter, std::move(value));
    }
    assign(statement.target, std::move(value));
    return Flow::kNormal;
  }

  Value make_macro(const MacroDefinition& definition) {
    if (captured_.empty() || captured_.back() != scope_) {
      captured_.push_back(scope_);
    }
    return std::make_shared<const Macro>(Macro{&definition, scope_});
  }

  Flow execute_form(const MacroStatement& statement) {
    scope_->variables.insert_or_assign(
        statement.macro.name, make_macro(statement.macro));
    return Flow::kNormal;
  }

  Flow execute_form(const CallBlockStatement& statement) {
    const Depth depth(*this);
    const auto& call = std::get<CallExpression>(statement.call->form);
    const Value callee = evaluate(*call.callee);
    const Arguments arguments = evaluated(call.arguments);
    const Value caller = make_macro(statement.caller);
    offset_ = statement.call->offset;
    const auto* macro = callee.get_if<std::shared_ptr<const Macro>>();
    TESSERA_CHECK(
        macro != nullptr, "{{% call %}} calls what is not a macro; use one");
    write(call_macro(**macro, arguments, caller));
    return Flow::kNormal;
  }

  Flow execute_form(const FilterBlockStatement& statement) {
    Value text = Value::text(captured(statement.body, scope_within(scope_)));
    const Value value = filtered_block(*statement.filter, std::move(text));
    write(to_text(value, budget_));
    return Flow::kNormal;
  }

  Flow execute_form(const WithStatement& statement) {
    const auto scope = scope_within(scope_);
    std::vector<Value> values;
    values.reserve(statement.variables.size());
    for (const auto& variable : statement.variables) {
      values.push_back(evaluate(*variable.second));
    }
    const ScopeChange change(*this, scope);
    for (std::size_t i = 0; i < values.size(); ++i) {
      assign(statement.variables[i].first, std::move(values[i]));
    }
    return execute(statement.body);
  }

  Flow execute_form(const GenerationStatement& statement) {
    const bool is_recorded =
        options_.generation_blocks == GenerationBlocks::kRecorded;
    TESSERA_CHECK(
        !is_recorded || captures_ == 0,
        "a generation block is within a macro, call, filter or set block, so that the place of its text is not known; move it out");
    const std::size_t begin = output_.size();
    const ScopeChange change(*this, scope_within(scope_));
    execute(statement.body);
    if (is_recorded) {
      generated_.emplace_back(begin, output_.size());
    }
    return Flow::kNormal;
  }

  Flow execute_form(const BreakStatement& /*statement*/) {
    return Flow::kBreak;
  }

  Flow execute_form(const ContinueStatement& /*statement*/) {
    return Flow::kContinue;
  }

  // Expressions.

  Value evaluate(const Expression& expression) {
    const Depth depth(*this);
    return std::visit(
        [&](const auto& form) { return evaluate_form(expression, form); },
        expression.form);
  }

  Value evaluate_or_none(const ExpressionPtr& expression) {
    return expression == nullptr ? Value(None()) : evaluate(*expression);
  }

  Value evaluate_form(
      const Expression& /*at*/,
      const ConstantExpression& form) {
    return form.value;
  }

  Value evaluate_form(const Expression& at, const NameExpression& form) {
    offset_ = at.offset;
    if (const Value* found = variable(form.name)) {
      return *found;
    }
    for (const BuiltinRow& row : kBuiltins) {
      if (row.name == form.name) {
        return Builtin{row.name};
      }
    }
    return Value::undefined(formatted("'{}' is undefined", form.name));
  }

  Value evaluate_form(
      const Expression& /*at*/,
      const SequenceExpression& form) {
    std::vector<Value> items;
    items.reserve(form.items.size());
    for (const ExpressionPtr& item : form.items) {
      items.push_back(evaluate(*item));
    }
    budget_.spend_bytes(items.size() * sizeof(Value));
    return Value::sequence(form.kind, std::move(items));
  }

  Value evaluate_form(const Expression& at, const DictExpression& form) {
    Dict dict;
    for (const auto& [key, value] : form.items) {
      Value name = evaluate(*key);
      Value item = evaluate(*value);
      offset_ = at.offset;
      dict.set(std::move(name), std::move(item), budget_);
    }
    return Value::dict(std::move(dict));
  }

  Value evaluate_form(const Expression& at, const AttributeExpression& form) {
    const Value object = evaluate(*form.object);
    offset_ = at.offset;
    return attribute_of(object, form.name, budget_);
  }

  Value evaluate_form(const Expression& at, const SubscriptExpression& form) {
    const Value object = evaluate(*form.object);
    const Value index = evaluate(*form.index);
    offset_ = at.offset;
    return item_of(object, index, budget_);
  }

  Value evaluate_form(const Expression& at, const SliceExpression& form) {
    const Value object = evaluate(*form.object);
    const Value begin = evaluate_or_none(form.begin);
    const Value end = evaluate_or_none(form.end);
    const Value step = evaluate_or_none(form.step);
    offset_ = at.offset;
    return slice_of(object, begin, end, step, budget_);
  }

  Arguments evaluated(const ArgumentExpressions& expressions) {
    Arguments arguments;
    for (const ExpressionPtr& argument : expressions.positional) {
      arguments.positional.push_back(evaluate(*argument));
    }
    for (const auto& [name, argument] : expressions.named) {
      arguments.named.emplace_back(name, evaluate(*argument));
    }
    return arguments;
  }

  Value evaluate_form(const Expression& at, const CallExpression& form) {
    const Value callee = evaluate(*form.callee);
    const Arguments arguments = evaluated(form.arguments);
    offset_ = at.offset;
    if (callee.is_undefined()) {
      fail_undefined(callee);
    }
    if (const auto* macro = callee.get_if<std::shared_ptr<const Macro>>()) {
      return Value::text(call_macro(
          **macro, arguments, Value::undefined("the macro has no caller")));
    }
    if (const auto* method = callee.get_if<std::shared_ptr<const Method>>()) {
      return call_method(**method, arguments, budget_);
    }
    if (const auto* builtin = callee.get_if<Builtin>()) {
      for (const BuiltinRow& row : kBuiltins) {
        if (row.name == builtin->name) {
          return (this->*row.call)(arguments);
        }
      }
    }
    TESSERA_FAIL(
        "a value of type {} cannot be called; remove the parentheses",
        type_name(callee));
  }

  std::string call_macro(
      const Macro& macro,
      const Arguments& arguments,
      const Value& caller) {
    const MacroDefinition& definition = *macro.definition;
    const std::vector<Parameter>& parameters = definition.parameters;
    TESSERA_CHECK(
        arguments.positional.size() <= parameters.size(),
        "the macro '{}' takes {} arguments, but is given {}; remove the others",
        definition.name,
        parameters.size(),
        arguments.positional.size());
    const auto scope = scope_within(macro.scope);
    const auto index_of = [&](const std::string& name) {
      return static_cast<std::size_t>(
          std::find_if(
              parameters.begin(),
              parameters.end(),
              [&](const Parameter& p) { return p.name == name; }) -
          parameters.begin());
    };
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
      scope->variables.emplace(parameters[i].name, arguments.positional[i]);
    }
    for (const auto& [name, value] : arguments.named) {
      TESSERA_CHECK(
          index_of(name) < parameters.size(),
          "the macro '{}' has no parameter '{}'; remove the argument",
          definition.name,
          name);
      TESSERA_CHECK(
          scope->variables.emplace(name, value).second,
          "the macro '{}' is given the argument '{}' twice; remove one",
          definition.name,
          name);
    }
    scope->variables.emplace("caller", caller);
    const Depth depth(*this);
    set_defaults(parameters, scope);
    return captured(definition.body, scope);
  }

  void set_defaults(
      const std::vector<Parameter>& parameters,
      const std::shared_ptr<Scope>& scope) {
    const ScopeChange change(*this, scope);
    for (const Parameter& parameter : parameters) {
      if (scope->variables.count(parameter.name) == 0) {
        Value value =
            parameter.standard != nullptr
                ? evaluate(*parameter.standard)
                : Value::undefined(formatted(
                      "parameter '{}' was not provided", parameter.name));
        scope->variables.emplace(parameter.name, std::move(value));
      }
    }
  }

  Value evaluate_form(const Expression& at, const FilterExpression& form) {
    return filtered(
        at,
        form,
        form.subject == nullptr ? block_text_ : evaluate(*form.subject));
  }

  Value filtered(
      const Expression& at,
      const FilterExpression& form,
      const Value& subject) {
    const Arguments arguments = evaluated(form.arguments);
    offset_ = at.offset;
    return apply_filter(form.name, subject, arguments, budget_);
  }

  /// A chain of filters whose innermost subject is the text of a block.
  Value filtered_block(const Expression& filter, Value text) {
    std::swap(block_text_, text);
    Value result = evaluate(filter);
    std::swap(block_text_, text);
    return result;
  }

  Value evaluate_form(const Expression& at, const TestExpression& form) {
    const Value subject = evaluate(*form.subject);
    const Arguments arguments = evaluated(form.arguments);
    offset_ = at.offset;
    return apply_test(form.name, subject, arguments, budget_);
  }

  Value evaluate_form(const Expression& at, const UnaryExpression& form) {
    const Value operand = evaluate(*form.operand);
    offset_ = at.offset;
    return unary_operation(form.operation, operand, budget_);
  }

  Value evaluate_form(const Expression& at, const BinaryExpression& form) {
    const Value left = evaluate(*form.left);
    const Value right = evaluate(*form.right);
    offset_ = at.offset;
    return binary_operation(form.operation, left, right, budget_);
  }

  Value evaluate_form(const Expression& /*at*/, const LogicalExpression& form) {
    Value left = evaluate(*form.left);
    const bool is_decided =
        is_truthy(left) == (form.operation == LogicalOperator::kOr);
    return is_decided ? left : evaluate(*form.right);
  }

  Value evaluate_form(const Expression& at, const ConcatExpression& form) {
    std::string result;
    for (const ExpressionPtr& part : form.parts) {
      const Value value = evaluate(*part);
      offset_ = at.offset;
      const std::string text = to_text(value, budget_);
      budget_.spend_bytes(text.size());
      result += text;
    }
    return Value::text(std::move(result));
  }

  Value evaluate_form(const Expression& at, const ComparisonExpression& form) {
    Value left = evaluate(*form.first);
    for (const auto& [comparison, expression] : form.others) {
      Value right = evaluate(*expression);
      offset_ = at.offset;
      if (!compare(comparison, left, right, budget_)) {
        return false;
      }
      left = std::move(right);
    }
    return true;
  }

  Value evaluate_form(
      const Expression& /*at*/,
      const ConditionalExpression& form) {
    if (is_truthy(evaluate(*form.condition))) {
      return evaluate(*form.then);
    }
    return form.otherwise != nullptr
               ? evaluate(*form.otherwise)
               : Value::undefined(
                     "the inline if-expression was false and has no else");
  }

  // Functions of the environment.

  Value call_raise_exception(const Arguments& arguments) {
    const auto bound =
        bound_arguments(arguments, "raise_exception", {"message"}, 1);
    TESSERA_FAIL("{}", to_text(*bound[0], budget_));
  }

  Value call_strftime_now(const Arguments& arguments) {
    const auto bound =
        bound_arguments(arguments, "strftime_now", {"format"}, 1);
    const std::string& format =
        text_argument(*bound[0], "strftime_now", "format");
    check_time_format(format);
    const std::time_t now = options_.now.value_or(std::time(nullptr));
    std::tm local{};
    TESSERA_CHECK(
        ::localtime_r(&now, &local) != nullptr,
        "strftime_now: the time {} has no date",
        static_cast<std::int64_t>(now));
    // A space tells an empty text from one that does not fit.
    std::array<char, 2048> buffer{};
    const std::size_t size = std::strftime(
        buffer.data(), buffer.size(), (format + " ").c_str(), &local);
    TESSERA_CHECK(size > 0, "strftime_now: the text is too long; shorten it");
    return Value::text(std::string(buffer.data(), size - 1));
  }

  static void check_time_format(std::string_view format) {
    TESSERA_CHECK(
        format.size() <= 200 && format.find('\0') == std::string_view::npos,
        "strftime_now: the format is too long, or contains a zero byte");
    for (std::size_t i = 0; i < format.size(); ++i) {
      if (format[i] != '%') {
        continue;
      }
      ++i;
      i += i < format.size() && format[i] == '-' ? 1 : 0;
      constexpr std::string_view kKnown = "aAbBcdeDFGHIjmMpRSTuUVwWxXyY%";
      TESSERA_CHECK(
          i < format.size() && kKnown.find(format[i]) != std::string_view::npos,
          "strftime_now: the format '{}' has a directive that is not implemented; use those of \"{}\"",
          format,
          kKnown);
    }
  }

  Value call_namespace(const Arguments& arguments) {
    const auto space = std::make_shared<Namespace>();
    spaces_.push_back(space);
    budget_.spend_bytes(sizeof(Namespace));
    const Dict attributes = merged(arguments, "namespace");
    for (const auto& [key, value] : attributes.items()) {
      space->attributes.insert_or_assign(
          text_argument(key, "namespace", "name"), value);
    }
    return space;
  }

  Value call_dict(const Arguments& arguments) {
    return Value::dict(merged(arguments, "dict"));
  }

  /// dict(mapping or pairs, name=value, ...)
  Dict merged(const Arguments& arguments, std::string_view function) {
    TESSERA_CHECK(
        arguments.positional.size() <= 1,
        "{} takes one argument without a name, but is given {}; remove the others",
        function,
        arguments.positional.size());
    Dict result;
    for (const Value& given : arguments.positional) {
      if (const Dict* dict = given.as_dict()) {
        for (const auto& [key, value] : dict->items()) {
          budget_.spend_steps();
          result.set(key, value, budget_);
        }
        continue;
      }
      for (const Value& item : elements(given, budget_)) {
        const std::vector<Value> pair = elements(item, budget_);
        TESSERA_CHECK(
            pair.size() == 2,
            "{}: an item has {} values, but must be a key and a value",
            function,
            pair.size());
        result.set(pair[0], pair[1], budget_);
      }
    }
    for (const auto& [name, value] : arguments.named) {
      result.set(Value::text(name), value, budget_);
    }
    return result;
  }

  Value call_range(const Arguments& arguments) {
    TESSERA_CHECK(
        arguments.named.empty() && !arguments.positional.empty() &&
            arguments.positional.size() <= 3,
        "range takes one to three integers: range(stop) or range(start, stop, step)");
    std::vector<std::int64_t> numbers;
    for (const Value& value : arguments.positional) {
      if (value.is_undefined()) {
        fail_undefined(value);
      }
      numbers.push_back(integer_argument(value, "range", "stop"));
    }
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    const bool fits =
        std::all_of(numbers.begin(), numbers.end(), [](std::int64_t number) {
          return number >= -kMost && number <= kMost;
        });
    TESSERA_CHECK(fits, "range: a number is too large; use smaller ones");
    const std::int64_t start = numbers.size() > 1 ? numbers[0] : 0;
    const std::int64_t stop = numbers.size() > 1 ? numbers[1] : numbers[0];
    const std::int64_t step = numbers.size() > 2 ? numbers[2] : 1;
    TESSERA_CHECK(step != 0, "range: the step is 0; use another one");
    const std::int64_t span = step > 0 ? stop - start : start - stop;
    const std::int64_t stride = std::abs(step);
    const std::int64_t length = span <= 0 ? 0 : (span + stride - 1) / stride;
    TESSERA_CHECK(
        length <= kMaxRange,
        "range: it has {} numbers, but may have {}; reduce it",
        length,
        kMaxRange);
    return std::make_shared<const Range>(Range{start, step, length});
  }

  struct BuiltinRow {
    std::string_view name;
    Value (Evaluator::*call)(const Arguments&);
  };
  static const std::array<BuiltinRow, 5> kBuiltins;

  const EvaluationOptions& options_;
  Budget& budget_;
  std::shared_ptr<Scope> scope_;
  std::size_t offset_ = 0;
  int depth_ = 0;
  int captures_ = 0; ///< blocks around, whose text is used as a value
  Value block_text_;
  std::string output_;
  std::vector<std::pair<std::size_t, std::size_t>> generated_;
  std::vector<std::shared_ptr<Namespace>> spaces_;
  std::vector<std::shared_ptr<Scope>> captured_; ///< by macros
};

const std::array<Evaluator::BuiltinRow, 5> Evaluator::kBuiltins = {{
    {"raise_exception", &Evaluator::call_raise_exception},
    {"strftime_now", &Evaluator::call_strftime_now},
    {"namespace", &Evaluator::call_namespace},
    {"dict", &Evaluator::call_dict},
    {"range", &Evaluator::call_range},
}};

} // namespace

Rendering evaluate_program(
    const Program& program,
    const std::string& place,
    const EvaluationOptions& options,
    Budget& budget) {
  Evaluator evaluator(options, budget);
  try {
    return evaluator.run(program);
  } catch (const Error& error) {
    TESSERA_FAIL(
        "{}: {}",
        place_in(program.source, place, evaluator.offset()),
        error.what());
  }
}

} // namespace tessera::text::jinja
