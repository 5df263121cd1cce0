// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/example_checks.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/tasks/column_checks.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace tessera::zoo {

namespace {

using Column = ExampleFiles::Column;

/// Checks the tensors of one set of examples against what a head takes.
class Checks : public ColumnChecks {
 public:
  Checks(
      const ExampleFiles& files,
      const TrainedHead& head,
      const ExampleOptions& options)
      : ColumnChecks(files, head, options.sequence_multiple),
        files_(files),
        head_(head),
        options_(options) {}

  /// Rejects inputs that this head does not take.
  void others() const {
    for (const Column& column : files_.columns()) {
      TESSERA_CHECK(
          is_taken(column.name),
          "{} is given, but a {} does not take it; remove it, or name the class that takes it in model.architecture",
          place(column.name),
          head_.architecture);
    }
  }

  void texts() const {
    const Column& ids = need("input_ids");
    if (head_.kind == HeadKind::kChoices) {
      dims(ids, 2, "[rows, choices, length]");
    } else {
      dims(ids, 1, "[rows, length]");
    }
    divides(ids);
    for (const char* name :
         {"attention_mask",
          "token_type_ids",
          "global_attention_mask",
          "context",
          "span"}) {
      shape(name, ids.row_shape);
    }
    shape("sep", {});
    shape("start_positions", {});
    shape("end_positions", {});
    shape("next_sentence_label", {});
    if (const Column* second = files_.find("decoder_input_ids")) {
      dims(*second, 1, "[rows, length]");
      divides(*second);
      shape("decoder_attention_mask", second->row_shape);
    }
    if (labels_follow_input(head_.kind)) {
      shape("labels", ids.row_shape);
    }
  }

  void images() const {
    const Column& pixels = need("pixel_values");
    dims(pixels, 3, "[rows, channels, height, width]");
    const zoo::PatchEmbeddingOptions& images = *head_.images;
    const auto& found = pixels.row_shape;
    const std::vector<int64_t> wanted{
        images.channels,
        images.pads ? found[1] : images.image.height,
        images.pads ? found[2] : images.image.width};
    shape("pixel_values", wanted);
    shape("second_pixel_values", wanted);
    const zoo::ImageSize grid = images.grid({found[1], found[2]});
    shape("noise", {grid.area()});
    shape("bool_masked_pos", {grid.area()});
    for (const auto& numbers : {options_.pixels.mean, options_.pixels.std}) {
      TESSERA_CHECK(
          numbers.size() <= 1 ||
              static_cast<int64_t>(numbers.size()) == images.channels,
          "data.pixels: {} values for {} channels; give one per channel in mean and std, or one for all",
          numbers.size(),
          images.channels);
    }
  }

  void labels() const {
    switch (head_.kind) {
      case HeadKind::kMaskedTokens:
      case HeadKind::kPreTraining:
        if (options_.token_mask) {
          refuse("labels", "data.mask makes labels; remove one of them");
        } else {
          need("labels", ", or data.mask, which makes them");
        }
        if (head_.kind == HeadKind::kPreTraining) {
          need("next_sentence_label");
        }
        break;
      case HeadKind::kNextTokens:
        break; // default: the input's tokens
      case HeadKind::kTokensInPlace:
      case HeadKind::kTokenClasses:
        need("labels");
        break;
      case HeadKind::kSecondText: {
        const Column& column = need("labels");
        dims(column, 1, "[rows, length]");
        divides(column);
        shape("decoder_input_ids", column.row_shape);
        shape("decoder_attention_mask", column.row_shape);
        break;
      }
      case HeadKind::kClasses:
        class_labels(need("labels"));
        break;
      case HeadKind::kChoices:
        need("labels");
        shape("labels", {});
        class_labels(need("labels"));
        break;
      case HeadKind::kAnswers:
        need("start_positions");
        need("end_positions");
        break;
      case HeadKind::kTwoViews:
        need("second_pixel_values");
        break;
      case HeadKind::kMaskedPixels:
      case HeadKind::kAutoencoder:
      case HeadKind::kOther:
        break;
    }
  }

 private:
  bool is_taken(const std::string& name) const {
    const HeadKind kind = head_.kind;
    if (name == "labels") {
      return labels_follow_input(kind) || kind == HeadKind::kSecondText ||
             kind == HeadKind::kClasses || kind == HeadKind::kChoices;
    }
    if (name == "start_positions" || name == "end_positions") {
      return kind == HeadKind::kAnswers;
    }
    if (name == "next_sentence_label") {
      return kind == HeadKind::kPreTraining;
    }
    if (name == "noise") {
      return kind == HeadKind::kAutoencoder;
    }
    if (name == "bool_masked_pos") {
      return kind == HeadKind::kMaskedPixels;
    }
    if (name == "second_pixel_values") {
      return kind == HeadKind::kTwoViews;
    }
    return head_.images.has_value() == (name == "pixel_values");
  }

  /// One label per example: few enough to check all of them.
  void class_labels(const Column& column) const {
    if (head_.has_several_labels) {
      shape("labels", {head_.classes});
      return;
    }
    if (is_floating(column.dtype)) {
      TESSERA_CHECK(
          head_.classes == 0 ||
              column.row_shape == std::vector<int64_t>{head_.classes},
          "{} is {}; classes must be integers, [rows]; several labels per row must be {}",
          place("labels"),
          show(column),
          shape_text({head_.classes}));
      return;
    }
    shape("labels", {});
    const int64_t bound = head_.kind == HeadKind::kChoices
                              ? need("input_ids").row_shape.front()
                              : head_.classes;
    if (bound == 0) {
      return;
    }
    constexpr size_t kRowsAtATime = 65536;
    for (size_t begin = 0; begin < files_.size(); begin += kRowsAtATime) {
      std::vector<size_t> rows(std::min(kRowsAtATime, files_.size() - begin));
      std::iota(rows.begin(), rows.end(), begin);
      check_range(files_, "labels", files_.read(column, rows), bound);
    }
  }

  const ExampleFiles& files_;
  const TrainedHead& head_;
  const ExampleOptions& options_;
};

} // namespace

void check_examples(
    const ExampleFiles& files,
    const TrainedHead& head,
    const ExampleOptions& options) {
  const Checks checks(files, head, options);
  if (head.kind == HeadKind::kOther) {
    return; // its own inputs
  }
  checks.names();
  checks.types();
  TESSERA_CHECK(
      !options.token_mask || head.kind == HeadKind::kMaskedTokens ||
          head.kind == HeadKind::kPreTraining,
      "data.mask makes labels of masked tokens, which a {} does not predict; remove it",
      head.architecture);
  if (head.images) {
    checks.images();
  } else {
    checks.texts();
  }
  checks.labels();
  checks.others();
}

} // namespace tessera::zoo
