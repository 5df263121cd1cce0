// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/heads/standard_head.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/inputs/column_checks.h"

#include <algorithm>

namespace tessera::zoo {

namespace {

const std::vector<std::string>& all_targets() {
  static const std::vector<std::string> names{
      "labels",
      "start_positions",
      "end_positions",
      "next_sentence_label",
      "noise",
      "bool_masked_pos",
      "second_pixel_values"};
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

} // namespace

int64_t StandardHead::patches_in(const NamedTensors& batch) const {
  return inputs_.images->grid(image_size_of(batch.at("pixel_values"))).area();
}

void StandardHead::check(const ColumnChecks& examples) const {
  examples.names();
  examples.types(labels_may_be_floats());
  if (inputs_.images) {
    check_images(examples);
  } else {
    check_texts(examples);
  }
  check_labels(examples);
  for (const ColumnChecks::Column& column : examples.files().columns()) {
    TESSERA_CHECK(
        takes(column.name),
        "{} is given, but a {} does not take it; remove it, or name the class that takes it in model.architecture",
        examples.place(column.name),
        examples.architecture());
  }
}

bool StandardHead::takes(const std::string& input) const {
  return contains(all_targets(), input)
             ? contains(targets(), input)
             : inputs_.images.has_value() == (input == "pixel_values");
}

void StandardHead::check_texts(const ColumnChecks& examples) const {
  const auto& ids = examples.need("input_ids");
  if (has_choices()) {
    examples.dims(ids, 2, "[rows, choices, length]");
  } else {
    examples.dims(ids, 1, "[rows, length]");
  }
  examples.divides(ids);
  for (const char* name :
       {"attention_mask",
        "token_type_ids",
        "global_attention_mask",
        "context",
        "span"}) {
    examples.shape(name, ids.row_shape);
  }
  for (const char* name :
       {"sep", "start_positions", "end_positions", "next_sentence_label"}) {
    examples.shape(name, {});
  }
  if (const auto* second = examples.files().find("decoder_input_ids")) {
    examples.dims(*second, 1, "[rows, length]");
    examples.divides(*second);
    examples.shape("decoder_attention_mask", second->row_shape);
  }
  for (const std::string& name : trimmed_with_tokens()) {
    examples.shape(name, ids.row_shape);
  }
}

void StandardHead::check_images(const ColumnChecks& examples) const {
  const auto& pixels = examples.need("pixel_values");
  examples.dims(pixels, 3, "[rows, channels, height, width]");
  const PatchEmbeddingOptions& images = *inputs_.images;
  const auto& found = pixels.row_shape;
  const std::vector<int64_t> wanted{
      images.channels,
      images.pads ? found[1] : images.image.height,
      images.pads ? found[2] : images.image.width};
  examples.shape("pixel_values", wanted);
  examples.shape("second_pixel_values", wanted);
  const int64_t patches = images.grid({found[1], found[2]}).area();
  examples.shape("noise", {patches});
  examples.shape("bool_masked_pos", {patches});
  const PixelOptions& options = examples.options().pixels;
  for (const auto& numbers : {options.mean, options.std}) {
    TESSERA_CHECK(
        numbers.size() <= 1 ||
            static_cast<int64_t>(numbers.size()) == images.channels,
        "data.pixels: {} values for {} channels; give one per channel in mean and std, or one for all",
        numbers.size(),
        images.channels);
  }
}

} // namespace tessera::zoo
