// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/image_fields.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <algorithm>

namespace tessera::zoo {

namespace {

constexpr int64_t kMostImagePixels = 65536;
constexpr int64_t kMostPatchPixels = 1024;
constexpr int64_t kMostChannels = 1024;
constexpr size_t kMostNumbers = 16;

void check_number(
    const ConfigFields& fields,
    const char* name,
    const nlohmann::json& value,
    int64_t most) {
  TESSERA_CHECK(
      value.is_number_integer() && value >= 1 && value <= most,
      "{}: '{}' contains {}; it must contain integers from 1 to {}",
      fields.origin(),
      name,
      runtime::show_json(value),
      most);
}

ImageSize size_field(
    const ConfigFields& fields,
    const char* name,
    int64_t otherwise,
    int64_t most) {
  const nlohmann::json value = fields.json_or(name, otherwise);
  if (!value.is_array()) {
    check_number(fields, name, value, most);
    return {value.get<int64_t>(), value.get<int64_t>()};
  }
  TESSERA_CHECK(
      value.size() == 2,
      "{}: '{}' is {}; it must be a number or [height, width]",
      fields.origin(),
      name,
      runtime::show_json(value));
  check_number(fields, name, value[0], most);
  check_number(fields, name, value[1], most);
  return {value[0].get<int64_t>(), value[1].get<int64_t>()};
}

} // namespace

PatchEmbeddingOptions patch_fields(
    const ConfigFields& fields,
    int64_t image_size,
    int64_t patch_size) {
  PatchEmbeddingOptions options;
  options.channels = fields.size({"num_channels"}, 3);
  TESSERA_CHECK(
      options.channels <= kMostChannels,
      "{}: 'num_channels' is {}; it must be at most {}",
      fields.origin(),
      options.channels,
      kMostChannels);
  options.image =
      size_field(fields, "image_size", image_size, kMostImagePixels);
  options.patch =
      size_field(fields, "patch_size", patch_size, kMostPatchPixels);
  options.deviation = fields.deviation({"initializer_range"});
  return options;
}

std::vector<int64_t> number_list(
    const ConfigFields& fields,
    const char* name,
    const std::vector<int64_t>& otherwise,
    int64_t most) {
  const nlohmann::json list = fields.json_or(name, otherwise);
  TESSERA_CHECK(
      list.is_array() && !list.empty() && list.size() <= kMostNumbers,
      "{}: '{}' is {}; it must be a list of 1 to {} numbers",
      fields.origin(),
      name,
      runtime::show_json(list),
      kMostNumbers);
  for (const nlohmann::json& value : list) {
    check_number(fields, name, value, most);
  }
  return list.get<std::vector<int64_t>>();
}

bool interpolates(const ModelInput& input) {
  const auto found = input.others.find("interpolate_pos_encoding");
  if (found == input.others.end()) {
    return false;
  }
  TESSERA_CHECK(
      found->second.numel() == 1,
      "interpolate_pos_encoding is {}; it must be one number",
      found->second.sizes());
  return found->second.ne(0).item<bool>();
}

} // namespace tessera::zoo
