// SPDX-License-Identifier: Apache-2.0
#pragma once
// `gather_texts()` all-gathers short strings; `are_equal()` and
// `find_differences()` compare them.

#include "tessera/runtime/comm/communicator.h"

#include <string>
#include <vector>

namespace tessera::runtime {

/// Returns the strings of all ranks of `group`, by rank. Collective; blocks.
/// @param label names the collective in errors.
std::vector<std::string> gather_texts(
    Communicator& group,
    const std::string& text,
    const std::string& label,
    const WaitCheck& check = {});

/// Returns whether all ranks of `group` have the same string, by its hash.
/// Collective; blocks.
/// @param label names the collective in errors.
bool are_equal(
    Communicator& group,
    const std::string& text,
    const std::string& label,
    const WaitCheck& check = {});

/// Compares what the ranks of a job have. Collective; blocks.
/// @param group all ranks of the job.
/// @param value compared.
/// @param account of this rank's value, for errors.
/// @param label names the collective in errors.
/// @return nothing if all values are equal; else a line for each of the first
///   few, "\n  rank 0: ACCOUNT" or "\n  ranks 1, 3: ACCOUNT", the account of
///   the first rank that has it.
std::string find_differences(
    Communicator& group,
    const std::string& value,
    const std::string& account,
    const std::string& label,
    const WaitCheck& check = {});

} // namespace tessera::runtime
