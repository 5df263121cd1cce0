// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/gguf/gguf_tokenizer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/json_file.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

/// llama.cpp's token types.
enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

/// llama.cpp identifies pre-tokenization rules by name; tokenizer.json contains
/// them as regular expressions.
struct Splitting {
  std::string_view name;
  std::string_view expression;
};

constexpr std::array kSplittings{
    Splitting{
        "llama-bpe",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
        R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    Splitting{
        "qwen2",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
        R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

/// The elements of a section that may be a sequence.
std::vector<nlohmann::json> parts_of(
    const nlohmann::json& section,
    const char* list) {
  if (!section.is_object()) {
    return {};
  }
  if (section.value("type", "") == "Sequence") {
    return section.value(list, std::vector<nlohmann::json>());
  }
  return {section};
}

std::string splitting_of(
    const nlohmann::json& pre_tokenizer,
    const std::string& origin) {
  std::string expression;
  for (const nlohmann::json& part : parts_of(pre_tokenizer, "pretokenizers")) {
    const auto type = part.value("type", "");
    if (type == "ByteLevel" && part.value("use_regex", true) &&
        expression.empty()) {
      return "gpt-2";
    }
    if (type == "Split") {
      expression =
          part.value("pattern", nlohmann::json::object()).value("Regex", "");
    }
  }
  for (const Splitting& known : kSplittings) {
    if (known.expression == expression) {
      return std::string(known.name);
    }
  }
  TESSERA_FAIL(
      "{}: text is split by '{}', for which no name in llama.cpp is known; export without the tokenizer",
      origin,
      expression);
}

/// "<0x0A>"
bool is_byte_token(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

/// Whether a normalizer is sentencepiece's writing of spaces.
bool writes_spaces(const nlohmann::json& part) {
  const auto type = part.value("type", "");
  return type == "Prepend" ||
         (type == "Replace" &&
          part.value("pattern", nlohmann::json::object()).value("String", "") ==
              " ");
}

std::vector<nlohmann::json> normalizers_of(const runtime::JsonValue& file) {
  return parts_of(
      file.value().value("normalizer", nlohmann::json()), "normalizers");
}

/// Whether a text gets a space in front, as llama.cpp's "llama" tokenizers do
/// by default.
bool adds_space(const runtime::JsonValue& file) {
  for (const nlohmann::json& part : normalizers_of(file)) {
    if (part.value("type", "") == "Prepend") {
      return true;
    }
  }
  for (const nlohmann::json& part : parts_of(
           file.value().value("pre_tokenizer", nlohmann::json()),
           "pretokenizers")) {
    if (part.value("type", "") == "Metaspace") {
      return part.contains("prepend_scheme")
                 ? part["prepend_scheme"] != "never"
                 : part.value("add_prefix_space", true);
    }
  }
  return false;
}

void warn_about_normalizers(const runtime::JsonValue& file) {
  for (const nlohmann::json& part : normalizers_of(file)) {
    if (!writes_spaces(part) && is_log_rank_zero()) {
      log_warning(
          "{}: texts are normalized by {}, which llama.cpp does not do for this kind of tokenizer: where it changes a text, other tokens are read there",
          file.place(),
          part.value("type", ""));
    }
  }
}

/// The special tokens that a tokenizer puts before and after a text; "" where
/// there is none.
std::pair<std::string, std::string> special_ends(
    const runtime::JsonValue& file) {
  std::pair<std::string, std::string> ends;
  for (const nlohmann::json& part : parts_of(
           file.value().value("post_processor", nlohmann::json()),
           "processors")) {
    const auto type = part.value("type", "");
    if (type == "RobertaProcessing" || type == "BertProcessing") {
      ends = {
          part.at("cls").at(0).get<std::string>(),
          part.at("sep").at(0).get<std::string>()};
    } else if (
        type == "TemplateProcessing" && part.contains("single") &&
        !part.at("single").empty()) {
      const auto special = [](const nlohmann::json& token_template) {
        return token_template.contains("SpecialToken")
                   ? token_template.at("SpecialToken").value("id", "")
                   : std::string();
      };
      const nlohmann::json& single = part.at("single");
      ends = {special(single.front()), special(single.back())};
    }
  }
  return ends;
}

class Tokens {
 public:
  Tokens(const runtime::JsonValue& file, int64_t vocab_size)
      : file_(file), model_(file.section("model")) {
    const auto type = model_.get_or<std::string>("type", "BPE");
    TESSERA_CHECK(
        type == "BPE",
        "{}: 'model' is a {} tokenizer; GGUF export supports only BPE. Export without the tokenizer",
        file.place(),
        type);
    texts_.resize(static_cast<size_t>(vocab_size));
    types_.resize(texts_.size(), kUnused);
    for (size_t i = 0; i < texts_.size(); ++i) {
      texts_[i] = "[PAD" + std::to_string(i) + "]";
    }
    byte_fallback_ = model_.get_or<bool>("byte_fallback", false);
    read_vocabulary();
    read_merges();
    read_added();
  }

  bool has_byte_fallback() const {
    return byte_fallback_;
  }

  std::optional<int64_t> id_of(const std::string& text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt
                               : std::optional<int64_t>(found->second);
  }

  void write(GgufMetadata& to) const {
    if (byte_fallback_) {
      to.emplace_back("tokenizer.ggml.model", std::string("llama"));
      to.emplace_back("tokenizer.ggml.pre", std::string("default"));
      to.emplace_back("tokenizer.ggml.add_space_prefix", adds_space(file_));
      warn_about_normalizers(file_);
    } else {
      to.emplace_back("tokenizer.ggml.model", std::string("gpt2"));
      to.emplace_back(
          "tokenizer.ggml.pre",
          splitting_of(
              file_.value().value("pre_tokenizer", nlohmann::json()),
              file_.place()));
    }
    to.emplace_back("tokenizer.ggml.tokens", texts_);
    to.emplace_back("tokenizer.ggml.token_type", types_);
    if (byte_fallback_) {
      to.emplace_back("tokenizer.ggml.scores", scores());
    } else {
      to.emplace_back("tokenizer.ggml.merges", merges_);
    }
  }

 private:
  void put(const std::string& text, const nlohmann::json& id, TokenType type) {
    TESSERA_CHECK(
        id.is_number_integer() && id.get<int64_t>() >= 0 &&
            id.get<int64_t>() < static_cast<int64_t>(texts_.size()),
        "{}: the token '{}' has the id {}; the model has ids from 0 to {}",
        file_.place(),
        text,
        runtime::show_json(id),
        texts_.size() - 1);
    const auto at = id.get<size_t>();
    texts_[at] = text;
    types_[at] = type;
    ids_[text] = static_cast<int64_t>(at);
  }

  void read_vocabulary() {
    const auto unknown = model_.get_or<std::string>("unk_token", "");
    const runtime::JsonValue vocabulary = model_.section("vocab");
    for (const auto& item : vocabulary.value().items()) {
      const bool is_byte = byte_fallback_ && is_byte_token(item.key());
      put(item.key(),
          item.value(),
          is_byte                                   ? kByte
          : byte_fallback_ && item.key() == unknown ? kUnknown
                                                    : kNormal);
    }
  }

  /// "a b", or ["a", "b"] in newer files.
  void read_merges() {
    for (const nlohmann::json& merge :
         model_.value().value("merges", nlohmann::json::array())) {
      const bool is_pair = merge.is_array() && merge.size() == 2 &&
                           merge[0].is_string() && merge[1].is_string();
      TESSERA_CHECK(
          is_pair || merge.is_string(),
          "{}: 'merges' holds {}, which is not a pair of tokens",
          file_.place(),
          runtime::show_json(merge));
      merges_.push_back(
          is_pair
              ? merge[0].get<std::string>() + " " + merge[1].get<std::string>()
              : merge.get<std::string>());
    }
  }

  void read_added() {
    for (const nlohmann::json& token :
         file_.value().value("added_tokens", nlohmann::json::array())) {
      const auto fields =
          runtime::json_object(token, file_.place() + ": 'added_tokens'");
      const auto text = fields.require<std::string>("content");
      const bool is_unknown =
          byte_fallback_ && text == model_.get_or<std::string>("unk_token", "");
      put(text,
          fields.value().value("id", nlohmann::json()),
          is_unknown                              ? kUnknown
          : fields.get_or<bool>("special", false) ? kControl
                                                  : kUserDefined);
    }
  }

  /// Scores that make llama.cpp merge in list order: a token's score decreases
  /// with the index of the merge that produces it.
  std::vector<float> scores() const {
    std::vector<float> scores(texts_.size(), 0);
    const auto last = -static_cast<float>(merges_.size());
    for (size_t i = 0; i < texts_.size(); ++i) {
      scores[i] = types_[i] == kNormal ? last : 0;
    }
    for (size_t rank = merges_.size(); rank-- > 0;) {
      std::string made = merges_[rank];
      // The space between the two halves: tokens themselves contain no plain
      // spaces.
      made.erase(made.find(' '), 1);
      if (const auto id = id_of(made)) {
        scores[static_cast<size_t>(*id)] = -static_cast<float>(rank);
      }
    }
    return scores;
  }

  const runtime::JsonValue& file_;
  runtime::JsonValue model_;
  bool byte_fallback_ = false;
  std::vector<std::string> texts_;
  std::vector<int32_t> types_;
  std::vector<std::string> merges_;
  std::unordered_map<std::string, int64_t> ids_;
};

/// A special token of tokenizer_config.json: a string, or an object that
/// contains it.
std::string special_text(const nlohmann::json& value) {
  if (value.is_object()) {
    return value.value("content", "");
  }
  return value.is_string() ? value.get<std::string>() : std::string();
}

/// The id in config.json; the first one of a list.
std::optional<int64_t> configured_id(
    const nlohmann::json& config,
    const std::string& key) {
  nlohmann::json id = config.value(key, nlohmann::json());
  if (id.is_array() && !id.empty()) {
    id = nlohmann::json(id.front());
  }
  if (!id.is_number_integer() || id.get<int64_t>() < 0) {
    return std::nullopt;
  }
  return id.get<int64_t>();
}

/// The default template, and the others by their names, which llama.cpp allows
/// letters and digits for.
void write_chat_templates(const fs::path& folder, GgufMetadata& to) {
  std::vector<std::string> others;
  for (const auto& [name, text] : text::chat_templates_in(folder)) {
    if (name == "default") {
      to.emplace_back("tokenizer.chat_template", text);
      continue;
    }
    std::string allowed = name;
    std::replace_if(
        allowed.begin(),
        allowed.end(),
        [](unsigned char c) { return std::isalnum(c) == 0; },
        '_');
    to.emplace_back("tokenizer.chat_template." + allowed, text);
    others.push_back(std::move(allowed));
  }
  if (!others.empty()) {
    to.emplace_back("tokenizer.chat_templates", others);
  }
}

void write_special_tokens(
    const fs::path& folder,
    const runtime::JsonValue& file,
    const Tokens& tokens,
    const nlohmann::json& config,
    GgufMetadata& to) {
  const auto settings =
      runtime::read_json_object(folder / "tokenizer_config.json");
  std::map<std::string, int64_t> ids;
  for (const auto& [foreign, native] :
       {std::pair("bos", "bos"),
        std::pair("eos", "eos"),
        std::pair("unk", "unknown"),
        std::pair("pad", "padding")}) {
    const std::string key = std::string(foreign) + "_token";
    auto id = tokens.id_of(
        special_text(settings.value().value(key, nlohmann::json())));
    if (!id) {
      id = configured_id(config, key + "_id");
    }
    if (id) {
      ids.emplace(foreign, *id);
      to.emplace_back(
          std::string("tokenizer.ggml.") + native + "_token_id",
          static_cast<uint32_t>(*id));
    }
  }
  // Without them llama.cpp goes by the kind of the tokenizer.
  const auto [first, last] = special_ends(file);
  const auto add =
      [&](const char* key, const std::string& end, const char* id) {
        const auto found = ids.find(id);
        to.emplace_back(
            std::string("tokenizer.ggml.") + key,
            settings.get<bool>(key).value_or(
                found != ids.end() && tokens.id_of(end) == found->second));
      };
  add("add_bos_token", first, "bos");
  add("add_eos_token", last, "eos");
  write_chat_templates(folder, to);
}

} // namespace

GgufMetadata gguf_tokenizer(
    const fs::path& folder,
    const nlohmann::json& config,
    int64_t vocab_size) {
  const fs::path path = folder / "tokenizer.json";
  if (folder.empty() || !fs::exists(path)) {
    return {{"tokenizer.ggml.model", std::string("none")}};
  }
  const auto file = runtime::read_json_object(path);
  try {
    const Tokens tokens(file, vocab_size);
    GgufMetadata metadata;
    tokens.write(metadata);
    write_special_tokens(folder, file, tokens, config, metadata);
    return metadata;
  } catch (const nlohmann::json::exception& error) {
    TESSERA_FAIL(
        "{} is not a tokenizer saved by the tokenizers library: {}; fetch the folder again, or export without the tokenizer",
        path,
        error.what());
  }
}

} // namespace tessera::zoo
