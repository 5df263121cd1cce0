// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_fields()` checks the ranges of an options struct that a program set.

#include "tessera/runtime/core/option_fields.h"

#include <string>

namespace tessera::runtime {

void check_list(const std::string& path, const OptionList& list);

/// @param path of the struct in a configuration, for messages: "loss_scale".
/// @throws tessera::Error naming path, value and what was expected, in the
///   words of read_fields().
template <typename Options>
void check_fields(const std::string& path, Options options) {
  check_list(path, list_of(options));
}

} // namespace tessera::runtime
