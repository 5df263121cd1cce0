// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/communication_options.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_check.h"

#include <bit>

namespace tessera {

void visit_fields(
    runtime::OptionFields& fields,
    CommunicationOptions& options) {
  fields.choice(
      "gather",
      options.gather,
      {{"none", Compression::kNone},
       {"int8", Compression::kInt8},
       {"int4", Compression::kInt4},
       {"fp8", Compression::kFp8}},
      "in what shards are sent when parameters are gathered; operators then see the rounded weights");
  fields.choice(
      "reduce",
      options.reduce,
      {{"none", Compression::kNone},
       {"int8", Compression::kInt8},
       {"int4", Compression::kInt4},
       {"fp8", Compression::kFp8}},
      "in what gradients are sent when they are reduced; they are added up in float32");
  fields.field(
      "block_elements",
      options.block_elements,
      {.min = 16, .max = 1 << 16},
      "elements that share a scale; a power of two");
}

void check(const CommunicationOptions& options) {
  runtime::check_fields("sharding.communication", options);
  TESSERA_CHECK(
      std::has_single_bit(static_cast<uint64_t>(options.block_elements)),
      "sharding.communication.block_elements is {}; it must be a power of two, such as 256.",
      options.block_elements);
}

} // namespace tessera
