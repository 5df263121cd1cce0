// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/examples_config.h"

#include "tessera/runtime/core/config.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <string>

namespace tessera::zoo {

namespace {

PixelOptions read_pixels(const runtime::ConfigReader& reader) {
  PixelOptions pixels;
  if (reader.contains("scale")) {
    pixels.scale = reader.get_double("scale");
  }
  pixels.mean = reader.get_doubles("mean", {}, std::vector<double>());
  pixels.std = reader.get_doubles("std", {.min = 0}, std::vector<double>());
  if (std::find(pixels.std.begin(), pixels.std.end(), 0.0) !=
      pixels.std.end()) {
    reader.fail(
        "std", "pixels are divided by these values: they must be above 0");
  }
  return pixels;
}

TokenMaskOptions read_token_mask(const runtime::ConfigReader& reader) {
  TokenMaskOptions mask;
  mask.mask_token = reader.get_int("mask_token", {.min = 0});
  mask.probability =
      reader.get_double("probability", {.min = 0, .max = 1}, mask.probability);
  mask.masked = reader.get_double("masked", {.min = 0, .max = 1}, mask.masked);
  mask.random = reader.get_double("random", {.min = 0, .max = 1}, mask.random);
  if (mask.masked + mask.random > 1) {
    reader.fail("random", "`masked` and `random` must add up to at most 1");
  }
  mask.never_masked =
      reader.get_ints("never_masked", {.min = 0}, std::vector<int64_t>());
  return mask;
}

} // namespace

ExamplesConfig read_examples_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  const runtime::ConfigReader reader = open_config(file, overrides);
  ExamplesConfig config;
  read_task(reader, TaskKind::kExamples);
  read_training_config(reader, config);
  read_model_source(reader, config);
  const auto model = reader.get_object("model");
  config.classes = model.get_strings("classes", config.classes);
  if (std::set<std::string>(config.classes.begin(), config.classes.end())
          .size() != config.classes.size()) {
    model.fail("classes", "give each class a different name");
  }
  config.problem_type = read_problem_type(model, /*multi_label=*/true, "");
  if (config.classes.size() == 1 && config.problem_type != "regression") {
    model.fail(
        "classes",
        "give at least two names, or none; to predict a number, set "
        "model.problem_type=regression");
  }
  const auto data = reader.get_object("data");
  config.train_file = data.get_string("train");
  config.heldout_file = data.get_string("heldout", "");
  ExampleOptions& examples = config.examples;
  examples.seed = config.seed;
  examples.trim_padding = data.get_bool("trim_padding", true);
  // Batches are then padded to their longest sequence.
  config.parallel.shapes_vary = examples.trim_padding;
  examples.pixels = read_pixels(data.get_object("pixels"));
  if (data.contains("mask")) {
    examples.token_mask = read_token_mask(data.get_object("mask"));
  }
  examples.patch_mask =
      data.get_double("patch_mask", {.min = 0, .max = 1}, examples.patch_mask);
  config.accuracy = data.get_bool("accuracy", true);
  finish_config(reader, resolved);
  return config;
}

} // namespace tessera::zoo
