// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Program` is a parsed Jinja template: statements and their expressions.

#include "tessera/text/chat/jinja_value.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct ConstantExpression {
  Value value;
};

struct NameExpression {
  std::string name;
};

/// A list or a tuple.
struct SequenceExpression {
  SequenceKind kind = SequenceKind::kList;
  std::vector<ExpressionPtr> items;
};

struct DictExpression {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};

struct AttributeExpression {
  ExpressionPtr object;
  std::string name;
};

struct SubscriptExpression {
  ExpressionPtr object;
  ExpressionPtr index;
};

/// object[begin:end:step]; what is not given is null.
struct SliceExpression {
  ExpressionPtr object;
  ExpressionPtr begin;
  ExpressionPtr end;
  ExpressionPtr step;
};

struct ArgumentExpressions {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct CallExpression {
  ExpressionPtr callee;
  ArgumentExpressions arguments;
};

struct FilterExpression {
  ExpressionPtr subject; ///< null: the text of the block that it filters
  std::string name;
  ArgumentExpressions arguments;
};

struct TestExpression {
  ExpressionPtr subject;
  std::string name;
  ArgumentExpressions arguments;
};

enum class UnaryOperator { kNot, kNegate, kPlus };
struct UnaryExpression {
  UnaryOperator operation = UnaryOperator::kNot;
  ExpressionPtr operand;
};

enum class BinaryOperator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
};
struct BinaryExpression {
  BinaryOperator operation = BinaryOperator::kAdd;
  ExpressionPtr left;
  ExpressionPtr right;
};

enum class LogicalOperator { kAnd, kOr };
struct LogicalExpression {
  LogicalOperator operation = LogicalOperator::kAnd;
  ExpressionPtr left;
  ExpressionPtr right;
};

/// a ~ b ~ c
struct ConcatExpression {
  std::vector<ExpressionPtr> parts;
};

enum class Comparison {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};
/// a < b < c
struct ComparisonExpression {
  ExpressionPtr first;
  std::vector<std::pair<Comparison, ExpressionPtr>> others;
};

struct ConditionalExpression {
  ExpressionPtr condition;
  ExpressionPtr then;
  ExpressionPtr otherwise; ///< may be null
};

struct Expression {
  std::size_t offset = 0; ///< in the template's source
  int height = 1; ///< of the tree of expressions
  std::variant<
      ConstantExpression,
      NameExpression,
      SequenceExpression,
      DictExpression,
      AttributeExpression,
      SubscriptExpression,
      SliceExpression,
      CallExpression,
      FilterExpression,
      TestExpression,
      UnaryExpression,
      BinaryExpression,
      LogicalExpression,
      ConcatExpression,
      ComparisonExpression,
      ConditionalExpression>
      form;
};

/// What an assignment assigns to: a name, `namespace.attribute`, or several.
struct Target {
  std::size_t offset = 0;
  std::string name;
  std::string attribute; ///< empty: the name itself
  std::vector<Target> elements; ///< not empty: their names, not `name`
};

struct Statement;
using Block = std::vector<Statement>;

struct DataStatement {
  std::string text;
};

struct OutputStatement {
  ExpressionPtr value;
};

struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};

struct ForStatement {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr condition; ///< may be null
  Block body;
  Block otherwise;
};

struct SetStatement {
  Target target;
  ExpressionPtr value;
};

struct SetBlockStatement {
  Target target;
  ExpressionPtr filter; ///< may be null
  Block body;
};

struct Parameter {
  std::string name;
  ExpressionPtr standard; ///< may be null
};

/// Of a macro, or of what a call block passes as `caller`.
struct MacroDefinition {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
};

struct MacroStatement {
  MacroDefinition macro;
};

struct CallBlockStatement {
  ExpressionPtr call;
  MacroDefinition caller;
};

struct FilterBlockStatement {
  ExpressionPtr filter;
  Block body;
};

struct WithStatement {
  std::vector<std::pair<Target, ExpressionPtr>> variables;
  Block body;
};

struct GenerationStatement {
  Block body;
};

struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  std::size_t offset = 0;
  std::variant<
      DataStatement,
      OutputStatement,
      IfStatement,
      ForStatement,
      SetStatement,
      SetBlockStatement,
      MacroStatement,
      CallBlockStatement,
      FilterBlockStatement,
      WithStatement,
      GenerationStatement,
      BreakStatement,
      ContinueStatement>
      form;
};

struct Program {
  std::string source; ///< what offsets refer to
  Block body;
  bool has_generation = false; ///< blocks
};

/// Parses a template.
/// @param place the template's, for errors.
/// @throws tessera::Error "PLACE:LINE:COLUMN: ..." on what is not Jinja or not
///     implemented.
Program parse_program(std::string_view text, const std::string& place);

/// "PLACE:LINE:COLUMN", counted from 1, in code points.
std::string place_in(
    std::string_view source,
    const std::string& place,
    std::size_t offset);

} // namespace tessera::text::jinja
