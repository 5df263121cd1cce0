// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/example_checks.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

namespace tessera {

namespace {

using Column = ExampleFiles::Column;

constexpr std::array<std::pair<std::string_view, InputKind>, 18> kInputs = {{
    {"input_ids", InputKind::kTokens},
    {"attention_mask", InputKind::kWhole},
    {"position_ids", InputKind::kWhole},
    {"token_type_ids", InputKind::kWhole},
    {"global_attention_mask", InputKind::kWhole},
    {"sep", InputKind::kWhole},
    {"context", InputKind::kWhole},
    {"span", InputKind::kWhole},
    {"decoder_input_ids", InputKind::kTokens},
    {"decoder_attention_mask", InputKind::kWhole},
    {"labels", InputKind::kLabels},
    {"next_sentence_label", InputKind::kWhole},
    {"start_positions", InputKind::kWhole},
    {"end_positions", InputKind::kWhole},
    {"pixel_values", InputKind::kPixels},
    {"second_pixel_values", InputKind::kPixels},
    {"bool_masked_pos", InputKind::kWhole},
    {"noise", InputKind::kNumbers},
}};

bool is_floating(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::kF64 || dtype == SafetensorsDtype::kF32 ||
         dtype == SafetensorsDtype::kF16 || dtype == SafetensorsDtype::kBF16;
}

std::string shape_text(const std::vector<int64_t>& row_shape) {
  std::string text = "[rows";
  for (const int64_t size : row_shape) {
    text += ", " + std::to_string(size);
  }
  return text + "]";
}

/// Checks the tensors of one set of examples, each by its name.
class Checks {
 public:
  Checks(
      const ExampleFiles& files,
      const TrainedHead& head,
      const ExampleOptions& options)
      : files_(files), head_(head), options_(options) {}

  void names() const {
    std::vector<std::string> known;
    for (const auto& [name, kind] : kInputs) {
      known.emplace_back(name);
    }
    for (const Column& column : files_.columns()) {
      if (std::find(known.begin(), known.end(), column.name) == known.end()) {
        const std::string nearest = nearest_name(column.name, known);
        TESSERA_FAIL(
            place(column.name),
            " is no input of a model",
            nearest.empty() ? "; leave it out, or give it the name that "
                              "transformers has for it"
                            : "; did you mean '" + nearest + "'?");
      }
    }
  }

  void types() const {
    for (const Column& column : files_.columns()) {
      const InputKind kind = kind_of_input(column.name);
      const bool may_float =
          kind == InputKind::kPixels || kind == InputKind::kNumbers ||
          (kind == InputKind::kLabels && head_.kind == HeadKind::kClasses);
      TESSERA_CHECK(
          may_float || !is_floating(column.dtype),
          place(column.name),
          " is ",
          show(column),
          "; its numbers must be whole: save them as an integer type");
      TESSERA_CHECK(
          kind != InputKind::kNumbers || is_floating(column.dtype),
          place(column.name),
          " is ",
          show(column),
          "; it must be of a floating-point type");
      for (const int64_t size : column.row_shape) {
        TESSERA_CHECK(
            size > 0, place(column.name), " is ", show(column), ", empty");
      }
    }
  }

  const Column& need(const std::string& name, const char* remedy = "") const {
    const Column* column = files_.find(name);
    TESSERA_CHECK(
        column != nullptr,
        "'",
        files_.path().string(),
        "' lacks '",
        name,
        "', which ",
        head_.architecture,
        " is trained with",
        remedy,
        "; it has ",
        files_.names());
    return *column;
  }

  /// What only some heads take, of a file that is for another one.
  void others() const {
    for (const Column& column : files_.columns()) {
      TESSERA_CHECK(
          is_taken(column.name),
          place(column.name),
          " is there, which a ",
          head_.architecture,
          " does not take; leave it out, or name the class that it is for in "
          "model.architecture");
    }
  }

  void refuse(const std::string& name, const char* reason) const {
    TESSERA_CHECK(
        files_.find(name) == nullptr, place(name), " is there, and ", reason);
  }

  /// Where it is there.
  void shape(const std::string& name, const std::vector<int64_t>& wanted)
      const {
    const Column* column = files_.find(name);
    TESSERA_CHECK(
        column == nullptr || column->row_shape == wanted,
        place(name),
        " is ",
        column == nullptr ? "" : show(*column),
        "; it must be ",
        shape_text(wanted));
  }

  void dims(const Column& column, size_t wanted, const char* what) const {
    TESSERA_CHECK(
        column.row_shape.size() == wanted,
        place(column.name),
        " is ",
        show(column),
        "; ",
        head_.architecture,
        " takes ",
        what);
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
          "data.pixels: ",
          numbers.size(),
          " numbers for ",
          images.channels,
          " channels; give one for each in mean and std, or one for all");
    }
  }

  void labels() const {
    switch (head_.kind) {
      case HeadKind::kMaskedTokens:
      case HeadKind::kPreTraining:
        if (options_.token_mask) {
          refuse("labels", "data.mask makes labels; leave one of them out");
        } else {
          need("labels", ", or data.mask, which makes them");
        }
        if (head_.kind == HeadKind::kPreTraining) {
          need("next_sentence_label");
        }
        break;
      case HeadKind::kNextTokens:
        break; // the input's tokens, where there are none
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

  std::string place(const std::string& name) const {
    return "'" + files_.path().string() + "': '" + name + "'";
  }

  void divides(const Column& ids) const {
    TESSERA_CHECK(
        ids.row_shape.back() % options_.sequence_multiple == 0,
        place(ids.name),
        " is ",
        show(ids),
        "; ranks that divide sequences need a length that is a multiple of ",
        options_.sequence_multiple,
        ": pad it");
  }

  /// A label for each example: few enough to look at all of them.
  void class_labels(const Column& column) const {
    if (head_.has_several_labels) {
      shape("labels", {head_.classes});
      return;
    }
    if (is_floating(column.dtype)) {
      TESSERA_CHECK(
          head_.classes == 0 ||
              column.row_shape == std::vector<int64_t>{head_.classes},
          place("labels"),
          " is ",
          show(column),
          "; classes are whole numbers, [rows]; several labels a row are ",
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

InputKind kind_of_input(const std::string& name) {
  for (const auto& [known, kind] : kInputs) {
    if (known == name) {
      return kind;
    }
  }
  return InputKind::kWhole;
}

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
      "data.mask makes labels of tokens that are masked, and a ",
      head.architecture,
      " does not predict these; leave it out");
  if (head.images) {
    checks.images();
  } else {
    checks.texts();
  }
  checks.labels();
  checks.others();
}

void check_range(
    const ExampleFiles& files,
    const std::string& name,
    const at::Tensor& numbers,
    int64_t bound) {
  at::Tensor wrong = numbers.ge(bound).logical_or(numbers.lt(0));
  if (kind_of_input(name) == InputKind::kLabels) {
    wrong = wrong.logical_and(numbers.ne(-100));
  }
  if (!wrong.any().item<bool>()) {
    return;
  }
  TESSERA_FAIL(
      "'",
      files.path().string(),
      "': '",
      name,
      "' holds ",
      numbers.masked_select(wrong)[0].item<int64_t>(),
      ", outside 0 .. ",
      bound - 1,
      kind_of_input(name) == InputKind::kTokens
          ? "; were the texts encoded with this model's tokenizer?"
          : "; the model has as many classes (config.json's id2label, or "
            "model.classes)");
}

} // namespace tessera
