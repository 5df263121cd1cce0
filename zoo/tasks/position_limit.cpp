// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/position_limit.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/models/decoder.h"
#include "tessera/zoo/models/encoder.h"

namespace tessera::zoo {

std::optional<int64_t> position_limit(const Model& model) {
  if (const auto* encoder = dynamic_cast<const Encoder*>(&model)) {
    const EncoderConfig& config = encoder->encoder_config();
    return config.positions - (config.positions_skip_padding
                                   ? config.padding_id.value_or(0) + 1
                                   : 0);
  }
  const auto* decoder = dynamic_cast<const Decoder*>(&model);
  if (decoder == nullptr || decoder->decoder_config().learned_positions == 0) {
    return std::nullopt;
  }
  const DecoderConfig& config = decoder->decoder_config();
  return config.learned_positions - config.position_offset;
}

void check_positions(const Model& model, int64_t max_length) {
  const auto limit = position_limit(model);
  TESSERA_CHECK(
      !limit || max_length <= *limit,
      "model.max_length is {}, but the model has {} positions; lower it",
      max_length,
      limit.value_or(0));
}

} // namespace tessera::zoo
