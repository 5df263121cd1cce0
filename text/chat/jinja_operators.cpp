// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/jinja_operators.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/chat/jinja_members.h"
#include "tessera/text/chat/jinja_text.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::text::jinja {

namespace {

std::string_view symbol(BinaryOperator operation) {
  switch (operation) {
    case BinaryOperator::kAdd:
      return "+";
    case BinaryOperator::kSubtract:
      return "-";
    case BinaryOperator::kMultiply:
      return "*";
    case BinaryOperator::kDivide:
      return "/";
    case BinaryOperator::kFloorDivide:
      return "//";
    case BinaryOperator::kModulo:
      return "%";
    case BinaryOperator::kPower:
      return "**";
  }
  return "";
}

[[noreturn]] void fail_types(
    BinaryOperator operation,
    const Value& left,
    const Value& right) {
  TESSERA_FAIL(
      "values of type {} and {} have no operator {}; convert one, e.g. by `| string` or `| int`",
      type_name(left),
      type_name(right),
      symbol(operation));
}

void check_divisor(bool is_zero) {
  TESSERA_CHECK(!is_zero, "division by zero; test the divisor first");
}

std::int64_t checked_integer(bool overflows, std::int64_t result) {
  TESSERA_CHECK(!overflows, "an integer needs more than 64 bits");
  return result;
}

std::int64_t multiplied(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool overflows = __builtin_mul_overflow(a, b, &result);
  return checked_integer(overflows, result);
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    check_divisor(base == 0);
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  std::int64_t result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1) {
      result = multiplied(result, base);
    }
    exponent /= 2;
    base = exponent > 0 ? multiplied(base, base) : base;
  }
  return result;
}

Value integer_operation(
    BinaryOperator operation,
    std::int64_t a,
    std::int64_t b) {
  std::int64_t result = 0;
  switch (operation) {
    case BinaryOperator::kAdd: {
      const bool overflows = __builtin_add_overflow(a, b, &result);
      return checked_integer(overflows, result);
    }
    case BinaryOperator::kSubtract: {
      const bool overflows = __builtin_sub_overflow(a, b, &result);
      return checked_integer(overflows, result);
    }
    case BinaryOperator::kMultiply:
      return multiplied(a, b);
    case BinaryOperator::kDivide:
      check_divisor(b == 0);
      return static_cast<double>(a) / static_cast<double>(b);
    case BinaryOperator::kPower:
      return integer_power(a, b);
    case BinaryOperator::kFloorDivide:
    case BinaryOperator::kModulo:
      break;
  }
  check_divisor(b == 0);
  if (b == -1) {
    // The quotient of the least integer does not fit.
    return operation == BinaryOperator::kModulo ? 0 : multiplied(a, -1);
  }
  const std::int64_t rest = a % b;
  const bool rounds_down = rest != 0 && (rest < 0) != (b < 0);
  return operation == BinaryOperator::kModulo ? rest + (rounds_down ? b : 0)
                                              : a / b - (rounds_down ? 1 : 0);
}

double float_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) {
    return std::copysign(0.0, b);
  }
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value float_operation(BinaryOperator operation, double a, double b) {
  switch (operation) {
    case BinaryOperator::kAdd:
      return a + b;
    case BinaryOperator::kSubtract:
      return a - b;
    case BinaryOperator::kMultiply:
      return a * b;
    case BinaryOperator::kDivide:
      check_divisor(b == 0);
      return a / b;
    case BinaryOperator::kFloorDivide: {
      check_divisor(b == 0);
      const double full = std::floor((a - float_modulo(a, b)) / b + 0.5);
      return full == 0 ? std::copysign(0.0, a / b) : full;
    }
    case BinaryOperator::kModulo:
      check_divisor(b == 0);
      return float_modulo(a, b);
    case BinaryOperator::kPower:
      check_divisor(a == 0 && b < 0);
      TESSERA_CHECK(
          a >= 0 || b == std::floor(b),
          "the power of a negative number is complex; use its absolute value");
      return std::pow(a, b);
  }
  return None();
}

Value added_texts(const Text& left, const Text& right, Budget& budget) {
  const bool is_markup = left.is_markup || right.is_markup;
  const auto part = [&](const Text& text) {
    return is_markup && !text.is_markup ? escaped_html(text.bytes) : text.bytes;
  };
  std::string result = part(left);
  result += part(right);
  budget.spend_bytes(result.size());
  return Value::text(std::move(result), is_markup);
}

Value repeated(const Value& value, std::int64_t count, Budget& budget) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  // More of anything exceeds any limit.
  constexpr std::size_t kMost = std::size_t{1} << 31;
  const Text* text = value.as_text();
  const std::size_t size =
      text != nullptr ? text->bytes.size()
                      : value.as_sequence()->items.size() * sizeof(Value);
  budget.spend_bytes(size * std::min(times, kMost));
  if (text != nullptr) {
    std::string result;
    for (std::size_t i = 0; i < (size == 0 ? 0 : times); ++i) {
      result += text->bytes;
    }
    return Value::text(std::move(result), text->is_markup);
  }
  const Sequence& sequence = *value.as_sequence();
  std::vector<Value> items;
  for (std::size_t i = 0; i < (size == 0 ? 0 : times); ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return Value::sequence(sequence.kind, std::move(items));
}

bool repeats(const Value& value) {
  const Sequence* sequence = value.as_sequence();
  return value.as_text() != nullptr ||
         (sequence != nullptr && sequence->kind <= SequenceKind::kTuple);
}

} // namespace

Value binary_operation(
    BinaryOperator operation,
    const Value& left,
    const Value& right,
    Budget& budget) {
  const Text* text = left.as_text();
  if (text != nullptr && operation == BinaryOperator::kModulo) {
    TESSERA_CHECK(
        !text->is_markup,
        "a text with % made by the filter safe is not implemented; remove |safe");
    return percent_format(text->bytes, right, budget);
  }
  for (const Value* operand : {&left, &right}) {
    if (operand->is_undefined()) {
      fail_undefined(*operand);
    }
  }
  if (left.as_integer() && right.as_integer()) {
    return integer_operation(
        operation, *left.as_integer(), *right.as_integer());
  }
  if (left.as_number() && right.as_number()) {
    return float_operation(operation, *left.as_number(), *right.as_number());
  }
  if (operation == BinaryOperator::kAdd) {
    if (text != nullptr && right.as_text() != nullptr) {
      return added_texts(*text, *right.as_text(), budget);
    }
    const Sequence* first = left.as_sequence();
    const Sequence* second = right.as_sequence();
    if (first != nullptr && second != nullptr && first->kind == second->kind &&
        first->kind <= SequenceKind::kTuple) {
      const std::size_t count = first->items.size() + second->items.size();
      budget.spend_bytes(count * sizeof(Value));
      budget.spend_steps(count / 16);
      std::vector<Value> items = first->items;
      items.insert(items.end(), second->items.begin(), second->items.end());
      return Value::sequence(first->kind, std::move(items));
    }
  }
  if (operation == BinaryOperator::kMultiply) {
    if (repeats(left) && right.as_integer()) {
      return repeated(left, *right.as_integer(), budget);
    }
    if (left.as_integer() && repeats(right)) {
      return repeated(right, *left.as_integer(), budget);
    }
  }
  fail_types(operation, left, right);
}

Value unary_operation(
    UnaryOperator operation,
    const Value& operand,
    Budget& /*budget*/) {
  if (operation == UnaryOperator::kNot) {
    return !is_truthy(operand);
  }
  if (operand.is_undefined()) {
    fail_undefined(operand);
  }
  const bool negates = operation == UnaryOperator::kNegate;
  if (const auto integer = operand.as_integer()) {
    return negates ? multiplied(*integer, -1) : *integer;
  }
  TESSERA_CHECK(
      operand.is<double>(),
      "a value of type {} has no sign; use a number",
      type_name(operand));
  const double number = *operand.as_number();
  return negates ? -number : number;
}

bool compare(
    Comparison comparison,
    const Value& left,
    const Value& right,
    Budget& budget) {
  const auto ordered = [&](const Value& a, const Value& b) {
    for (const Value* operand : {&left, &right}) {
      if (operand->is_undefined()) {
        fail_undefined(*operand);
      }
    }
    return less(a, b, budget);
  };
  switch (comparison) {
    case Comparison::kEqual:
      return equal(left, right, budget);
    case Comparison::kNotEqual:
      return !equal(left, right, budget);
    case Comparison::kLess:
      return ordered(left, right);
    case Comparison::kLessEqual:
      return ordered(left, right) || equal(left, right, budget);
    case Comparison::kGreater:
      return ordered(right, left);
    case Comparison::kGreaterEqual:
      return ordered(right, left) || equal(left, right, budget);
    case Comparison::kIn:
      return contains(right, left, budget);
    case Comparison::kNotIn:
      return !contains(right, left, budget);
  }
  return false;
}

} // namespace tessera::text::jinja
