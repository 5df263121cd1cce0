// SPDX-License-Identifier: Apache-2.0
#pragma once
// `binary_operation()`, `unary_operation()` and `compare()` are Python's
// operators.

#include "tessera/text/chat/jinja_syntax.h"

namespace tessera::text::jinja {

/// @throws tessera::Error if Python has no such operation on the types, on
///     division by zero, and if an integer needs more than 64 bits.
Value binary_operation(
    BinaryOperator operation,
    const Value& left,
    const Value& right,
    Budget& budget);

Value unary_operation(
    UnaryOperator operation,
    const Value& operand,
    Budget& budget);

bool compare(
    Comparison comparison,
    const Value& left,
    const Value& right,
    Budget& budget);

} // namespace tessera::text::jinja
