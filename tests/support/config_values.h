// SPDX-License-Identifier: Apache-2.0
#pragma once
// `config_value()` reads one field of a configuration.

#include "tessera/runtime/core/config.h"

namespace tessera::tests {

/// @param value of a field whose key is absent.
template <typename Value>
Value config_value(
    const runtime::ConfigReader& config,
    runtime::OptionKey key,
    Value value = {}) {
  config.read([&](runtime::OptionFields& fields) {
    if constexpr (requires { fields.field(key, value, ""); }) {
      fields.field(key, value, "");
    } else {
      fields.field(key, value, {}, ""); // of any size
    }
  });
  return value;
}

} // namespace tessera::tests
