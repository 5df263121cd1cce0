// SPDX-License-Identifier: Apache-2.0
#pragma once
// `evaluate_program()` renders a parsed Jinja template.

#include "tessera/text/chat/jinja_syntax.h"

#include <cstddef>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::text::jinja {

struct Rendering {
  std::string text;
  /// [begin, end) in bytes of what generation blocks wrote.
  std::vector<std::pair<std::size_t, std::size_t>> generated;
};

/// Whether generation blocks are recorded, which is an error within macros and
/// other blocks whose text is used as a value.
enum class GenerationBlocks { kIgnored, kRecorded };

struct EvaluationOptions {
  std::map<std::string, Value> variables;
  std::optional<std::time_t> now; ///< for strftime_now; nothing: the clock
  GenerationBlocks generation_blocks = GenerationBlocks::kIgnored;
};

/// @param place the template's, for errors.
/// @throws tessera::Error "PLACE:LINE:COLUMN: ..." if the template calls
///     raise_exception(), uses what is not implemented, or exceeds the budget.
Rendering evaluate_program(
    const Program& program,
    const std::string& place,
    const EvaluationOptions& options,
    Budget& budget);

} // namespace tessera::text::jinja
