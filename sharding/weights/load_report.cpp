// SPDX-License-Identifier: Apache-2.0
// LoadWeightsReport as lines of a log and as JSON.
#include "tessera/sharding/weights/load_weights.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"

#include <c10/util/ArrayRef.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace tessera {

namespace {

using nlohmann::ordered_json;

std::string show(const std::string& name) {
  return name;
}

std::string show(const OtherShape& other) {
  return formatted(
      "{} ({} is {}, not {})",
      other.name,
      other.source,
      c10::IntArrayRef(other.found),
      c10::IntArrayRef(other.expected));
}

/// One line, however many tensors there are.
template <typename Tensor>
void add_line(
    std::string& text,
    const char* label,
    const std::vector<Tensor>& tensors) {
  constexpr size_t kShown = 20;
  if (tensors.empty()) {
    return;
  }
  text += formatted("\n  {} ({}):", label, tensors.size());
  for (size_t i = 0; i < std::min(kShown, tensors.size()); ++i) {
    text += (i == 0 ? " " : ", ") + show(tensors[i]);
  }
  text += tensors.size() > kShown ? ", ..." : "";
}

} // namespace

std::string LoadWeightsReport::text() const {
  const size_t all = loaded.size() + missing.size() + missing_buffers.size() +
                     other_shapes.size() + not_chosen.size();
  std::string text = formatted(
      "loaded {} of {}",
      loaded.size(),
      runtime::count_text(static_cast<int64_t>(all), "tensor"));
  add_line(text, "not in the checkpoint, keep their values", missing);
  add_line(
      text,
      "buffers not in the checkpoint, keep their values",
      missing_buffers);
  add_line(text, "of another shape, keep their values", other_shapes);
  add_line(text, "not chosen, keep their values", not_chosen);
  add_line(text, "of the checkpoint, not in the model", unexpected);
  add_line(text, "of the checkpoint, left out", left_out);
  if (!with_state.empty() || !without_state.empty()) {
    text += formatted(
        "\n  with their optimizer state: {} of {}",
        with_state.size(),
        runtime::count_text(
            static_cast<int64_t>(with_state.size() + without_state.size()),
            "trained parameter"));
  }
  add_line(text, "loaded, but their optimizer state was not", without_state);
  return text;
}

std::string LoadWeightsReport::json() const {
  ordered_json taken = ordered_json::array();
  for (const LoadedWeight& one : loaded) {
    taken.push_back({{"name", one.name}, {"source", one.source}});
  }
  ordered_json others = ordered_json::array();
  for (const OtherShape& one : other_shapes) {
    others.push_back(
        {{"name", one.name},
         {"source", one.source},
         {"expected", one.expected},
         {"found", one.found}});
  }
  return ordered_json{
      {"loaded", taken},
      {"missing", missing},
      {"missing_buffers", missing_buffers},
      {"other_shapes", others},
      {"not_chosen", not_chosen},
      {"unexpected", unexpected},
      {"left_out", left_out},
      {"with_state", with_state},
      {"without_state", without_state}}
      .dump(2);
}

} // namespace tessera
