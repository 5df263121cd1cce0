// SPDX-License-Identifier: Apache-2.0
// A config.json of any bytes, and the model that it describes, without memory.

#include "fuzz/fuzz_target.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/models/registry.h"

#include <algorithm>

namespace tessera::fuzz_model_config {
namespace {

/// What may be thousands of layers becomes a few: making them takes long.
void make_small(nlohmann::json& value) {
  constexpr int64_t kMost = 64;
  constexpr int64_t kRefused = 10'000;
  if (value.is_number_integer() && value > kMost && value <= kRefused) {
    value = kMost;
  }
  if (value.is_structured()) {
    for (nlohmann::json& inner : value) {
      make_small(inner);
    }
  }
}

} // namespace

TESSERA_FUZZ_TARGET(model_config) {
  try {
    nlohmann::json config = runtime::parse_json(input, "config.json");
    make_small(config);
    lazy([&] { return zoo::from_config(config); });
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_model_config
