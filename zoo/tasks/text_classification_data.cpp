// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/text_classification_data.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>

namespace tessera::zoo {

namespace {

std::string string_field(
    const nlohmann::json& object,
    const std::string& key,
    const std::string& place) {
  TESSERA_CHECK(
      object.is_object() && object.contains(key) && object[key].is_string(),
      "{}: expected an object with a string under '{}', found {}. Name the columns in data.text_key and data.label_key.",
      place,
      key,
      object.dump().substr(0, 80));
  return object[key].get<std::string>();
}

} // namespace

std::vector<LabelledText> read_labelled_texts(
    const std::filesystem::path& path,
    const TextClassificationColumns& columns) {
  const std::string content = runtime::read_text_file(path);
  std::vector<LabelledText> texts;
  size_t begin = 0;
  for (int64_t line = 1; begin < content.size(); ++line) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string text = content.substr(begin, end - begin);
    begin = end + 1;
    if (text.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const std::string place = path.string() + ":" + std::to_string(line);
    const auto object = runtime::parse_json(text, place);
    texts.push_back(
        {string_field(object, columns.text, place),
         string_field(object, columns.label, place)});
  }
  TESSERA_CHECK(
      !texts.empty(),
      "{}: the file contains no examples. Expected one JSON object per line, like {{\"text\": \"...\", \"label\": \"...\"}}.",
      path.string());
  return texts;
}

std::vector<std::string> labels_of(const std::vector<LabelledText>& texts) {
  std::set<std::string> labels;
  for (const LabelledText& text : texts) {
    labels.insert(text.label);
  }
  return {labels.begin(), labels.end()};
}

std::vector<LabelledEncoding> encode_labelled_texts(
    const std::vector<LabelledText>& texts,
    const std::vector<std::string>& labels,
    const BertTokenizer& tokenizer,
    int64_t max_length) {
  std::vector<LabelledEncoding> examples;
  examples.reserve(texts.size());
  EncodeOptions options;
  options.max_length = max_length;
  for (const LabelledText& text : texts) {
    const auto found = std::find(labels.begin(), labels.end(), text.label);
    if (found == labels.end()) {
      const std::string nearest = runtime::nearest_name(text.label, labels);
      TESSERA_FAIL(
          "the label '{}' of the text '{}' is not among the model's {} labels{}",
          text.label,
          text.text.substr(0, 60),
          labels.size(),
          nearest.empty() ? "." : "; did you mean '" + nearest + "'?");
    }
    examples.push_back(
        {tokenizer.encode(text.text, options), found - labels.begin()});
  }
  return examples;
}

double majority_share(const std::vector<LabelledEncoding>& examples) {
  std::map<int64_t, int64_t> counts;
  int64_t most = 0;
  for (const LabelledEncoding& example : examples) {
    most = std::max(most, ++counts[example.label]);
  }
  return static_cast<double>(most) / static_cast<double>(examples.size());
}

} // namespace tessera::zoo
