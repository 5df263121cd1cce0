// SPDX-License-Identifier: Apache-2.0
// Reads the tokenizer of a Hugging Face folder, whichever files it has.
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/json_file.h"
#include "tessera/runtime/io/known_keys.h"
#include "tessera/text/tokenizer/sentencepiece_text.h"
#include "tessera/text/tokenizer/tokenizer_classes.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"
#include "tessera/text/tokenizer/vocabulary.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array<const char*, 7> kSpecialTokens{
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token"};

/// A value above it means that the length is not limited.
constexpr double kMostTokens = 1e9;

constexpr runtime::IntRange kTokenIds{
    .min = 0,
    .max = std::numeric_limits<int32_t>::max()};

/// A special token of tokenizer_config.json or special_tokens_map.json: written
/// as "[CLS]" or as {"content": "[CLS]", "lstrip": ...}. Its id is not known.
AddedToken read_special_token(const json& item, const std::string& place) {
  const runtime::JsonValue value(item, place);
  AddedToken token{.is_special = true};
  if (!item.is_object()) {
    token.content = value.as<std::string>();
    return token;
  }
  token.content = value.at("content").as<std::string>();
  token.is_single_word = value.value_or("single_word", false);
  token.strips_left = value.value_or("lstrip", false);
  token.strips_right = value.value_or("rstrip", false);
  token.is_normalized = value.value_or("normalized", false);
  return token;
}

/// The files of a folder beside the vocabulary.
class FolderFiles {
 public:
  explicit FolderFiles(const fs::path& folder)
      : config(runtime::read_json_object(folder / "tokenizer_config.json")),
        added(runtime::read_json_object(folder / "added_tokens.json")),
        lists_added_tokens(config.contains("added_tokens_decoder")),
        special_(runtime::read_json_object(folder / "special_tokens_map.json")),
        model_(runtime::read_json_object(folder / "config.json")) {}

  /// The special token with a name, such as "bos_token". As in transformers,
  /// special_tokens_map.json comes first, and is not read in the newer folders
  /// whose tokenizer_config.json lists all added tokens.
  /// @param strips_left of a token that is written as a text alone.
  std::optional<AddedToken> special_token(
      const char* key,
      bool strips_left = false) const {
    for (const runtime::JsonValue* file : in_order()) {
      const auto found = file->value().find(key);
      if (found != file->value().end() && !found->is_null()) {
        AddedToken token = read_special_token(
            *found, formatted("{}: '{}'", file->place(), key));
        token.strips_left |= strips_left && !found->is_object();
        if (!token.content.empty()) {
          return token;
        }
      }
    }
    return std::nullopt;
  }

  /// The special tokens without a name.
  std::vector<AddedToken> other_special_tokens() const {
    std::vector<AddedToken> tokens;
    for (const char* key :
         {"additional_special_tokens", "extra_special_tokens"}) {
      for (const runtime::JsonValue* file : in_order()) {
        const auto found = file->value().find(key);
        if (found == file->value().end() || !found->is_structured()) {
          continue;
        }
        for (const json& item : *found) { // of an object the values
          tokens.push_back(read_special_token(
              item, formatted("{}: '{}'", file->place(), key)));
        }
        break;
      }
    }
    return tokens;
  }

  /// The tokenizer's class as a file names it; empty: none does.
  std::string class_name() const {
    auto name = config.get_or<std::string>("tokenizer_class", "");
    if (name.empty()) {
      name = model_.get_or<std::string>("tokenizer_class", "");
    }
    return name;
  }
  std::string model_type() const {
    return model_.get_or<std::string>("model_type", "");
  }

  runtime::JsonValue config;
  runtime::JsonValue added;
  bool lists_added_tokens;

 private:
  std::vector<const runtime::JsonValue*> in_order() const {
    return lists_added_tokens ? std::vector{&config}
                              : std::vector{&special_, &config};
  }

  runtime::JsonValue special_;
  runtime::JsonValue model_;
};

/// A special token that a class has where no file names one; empty: none.
std::string special_of(const TokenizerClass& row, std::string_view key) {
  for (const auto& [name, token] : row.special_tokens) {
    if (name == key) {
      return token;
    }
  }
  return "";
}

/// The vocabulary of a folder without a tokenizer.json.
struct VocabularyFile {
  VocabularyKind kind = VocabularyKind::kWordPiece;
  fs::path path; ///< the file, or one of them
};

constexpr std::array<const char*, 3> kSentencePieceFiles{
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model"};

std::vector<VocabularyFile> vocabulary_files(const fs::path& folder) {
  std::vector<VocabularyFile> files;
  if (fs::exists(folder / "vocab.txt")) {
    files.push_back({VocabularyKind::kWordPiece, folder / "vocab.txt"});
  }
  if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt")) {
    files.push_back({VocabularyKind::kByteLevelBpe, folder / "vocab.json"});
  }
  for (const char* name : kSentencePieceFiles) {
    if (fs::exists(folder / name)) {
      files.push_back({VocabularyKind::kSentencePiece, folder / name});
    }
  }
  return files;
}

void check_not_refused(
    const TokenizerClass* row,
    const fs::path& folder,
    const FolderFiles& files,
    bool has_json) {
  const std::string name = files.class_name();
  if (row == nullptr || row->refusal.empty() ||
      (has_json && (name.empty() || !row->refuses_tokenizer_json))) {
    return;
  }
  TESSERA_FAIL(
      "{}: the tokenizer is a {}{}, which {}; that is not implemented. Remedy: {}",
      folder.string(),
      name.empty() ? row->names.front() : name,
      name.empty()
          ? formatted(
                " (by config.json's model_type, \"{}\")", files.model_type())
          : "",
      row->refusal,
      row->remedy);
}

/// The class that the files name, with a tokenizer.json beside them; nullptr:
/// none that is known, so that the tokenizer.json says everything.
const TokenizerClass* class_beside_json(const FolderFiles& files) {
  const std::string name = files.class_name();
  return name.empty() ? tokenizer_class_of_model(files.model_type())
                      : tokenizer_class(name);
}

/// The class of a folder without a tokenizer.json, and its vocabulary.
std::pair<const TokenizerClass*, VocabularyFile> choose_class(
    const fs::path& folder,
    const FolderFiles& files) {
  const std::string name = files.class_name();
  const bool is_named = !is_generic_tokenizer_class(name);
  const TokenizerClass* row = is_named ? tokenizer_class(name)
                              : name.empty()
                                  ? tokenizer_class_of_model(files.model_type())
                                  : nullptr;
  check_not_refused(row, folder, files, /*has_json=*/false);
  const std::vector<VocabularyFile> found = vocabulary_files(folder);
  TESSERA_CHECK(
      !found.empty(),
      "{} has no tokenizer: none of tokenizer.json, vocab.txt, vocab.json with merges.txt, tokenizer.model, spiece.model and sentencepiece.bpe.model is there. Copy those of the tokenizer that made its training data there (`tessera tokenize` keeps it in PREFIX.tokenizer/), or fetch the folder again with them.",
      folder.string());
  TESSERA_CHECK(
      !is_named || row != nullptr,
      "{}: the tokenizer is a {}, whose code is not known here. Save it as tokenizer.json with transformers (AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)), or give the path of the vocabulary's file in place of the folder if it is a plain one",
      folder.string(),
      name);
  if (row != nullptr) {
    const auto listed = std::find_if(
        found.begin(), found.end(), [row](const VocabularyFile& file) {
          return file.kind == row->vocabulary;
        });
    if (listed != found.end()) {
      return {row, *listed};
    }
    TESSERA_CHECK(
        !is_named,
        "{}: the tokenizer is a {}, whose vocabulary is not in {}; fetch the folder again with the tokenizer's files, or name the class that reads this one in tokenizer_config.json",
        folder.string(),
        name,
        found.front().path.filename().string());
  }
  return {&default_tokenizer_class(found.front().kind), found.front()};
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::istringstream text(runtime::read_text_file(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

/// Whether a section of a tokenizer.json says that it is of a type.
bool is_type(const json& section, const char* type) {
  return section.is_object() && section.contains("type") &&
         section["type"] == type;
}

/// The model, normalizer, pre-tokenizer and decoder that the tokenizer.json of
/// a BERT folder with a vocab.txt would have.
json wordpiece_document(
    const fs::path& path,
    const TokenizerClass& row,
    const FolderFiles& files) {
  const Vocabulary listed = Vocabulary::from_vocab_file(path);
  json vocab = json::object();
  for (int64_t id = 0; id < listed.size(); ++id) {
    vocab[listed.token(id)] = id;
  }
  const auto unk = files.special_token("unk_token");
  const std::string unk_token =
      unk ? unk->content : special_of(row, "unk_token");
  TESSERA_CHECK(
      vocab.contains(unk_token),
      "{} has no line '{}'; it is not the vocabulary of a BERT model, or tokenizer_config.json names other tokens",
      path.string(),
      unk_token);
  return {
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", true},
        {"handle_chinese_chars", true},
        {"strip_accents", nullptr},
        {"lowercase", true}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", unk_token},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", 100},
        {"vocab", vocab}}}};
}

/// The same of a folder with vocab.json and merges.txt.
json byte_level_document(
    const fs::path& folder,
    const TokenizerClass& row,
    const FolderFiles& files) {
  json merges = json::array();
  for (const std::string& line : lines_of(folder / "merges.txt")) {
    if (!line.empty() && line.compare(0, 9, "#version:") != 0) {
      merges.push_back(line);
    }
  }
  json byte_level{
      {"type", "ByteLevel"},
      {"add_prefix_space", files.config.get_or("add_prefix_space", false)},
      {"trim_offsets", row.trims_offsets},
      {"use_regex", row.pattern.empty()}};
  json document{
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", byte_level},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", ""},
        {"end_of_word_suffix", ""},
        {"fuse_unk", false},
        {"vocab", runtime::read_json_object(folder / "vocab.json").value()},
        {"merges", merges}}}};
  if (row.composes) {
    document["normalizer"] = {{"type", "NFC"}};
  }
  if (!row.pattern.empty()) {
    document["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"},
           {"pattern", {{"Regex", row.pattern}}},
           {"behavior", "Isolated"},
           {"invert", false}},
          byte_level}}};
  }
  return document;
}

/// Leaves out the space that a tokenizer of LLaMA's kind puts before a text.
void drop_prefix(json& document) {
  json& normalizer = document["normalizer"];
  if (is_type(normalizer, "Prepend")) {
    normalizer = nullptr;
  } else if (is_type(normalizer, "Sequence")) {
    json kept = json::array();
    for (json& part : normalizer["normalizers"]) {
      if (!is_type(part, "Prepend")) {
        kept.push_back(std::move(part));
      }
    }
    normalizer["normalizers"] = std::move(kept);
  }
  json& pre_tokenizer = document["pre_tokenizer"];
  if (is_type(pre_tokenizer, "Metaspace")) {
    pre_tokenizer["prepend_scheme"] = "never";
    pre_tokenizer.erase("add_prefix_space");
  }
}

/// transformers lets tokenizer_config.json overrule these of tokenizer.json.
void overrule(
    json& document,
    const TokenizerClass* row,
    const runtime::JsonValue& config) {
  json& normalizer = document["normalizer"];
  if (is_type(normalizer, "BertNormalizer") && row != nullptr &&
      row->vocabulary == VocabularyKind::kWordPiece) {
    normalizer["lowercase"] = config.get_or("do_lower_case", true);
    normalizer["handle_chinese_chars"] =
        config.get_or("tokenize_chinese_chars", true);
    const auto strips = config.get<bool>("strip_accents");
    normalizer["strip_accents"] = strips ? json(*strips) : json(nullptr);
  }
  json& pre_tokenizer = document["pre_tokenizer"];
  const auto adds_space = config.get<bool>("add_prefix_space");
  if (adds_space && is_type(pre_tokenizer, "ByteLevel")) {
    pre_tokenizer["add_prefix_space"] = *adds_space;
  }
  if (adds_space && !*adds_space && row != nullptr && row->has_legacy_prefix) {
    drop_prefix(document);
  }
}

/// The added tokens that the files list, besides those of a tokenizer.json, in
/// the order of their ids.
std::map<int64_t, AddedToken> listed_tokens(
    const FolderFiles& files,
    const std::set<std::string>& special) {
  std::map<int64_t, AddedToken> tokens;
  if (!files.lists_added_tokens) {
    for (const auto& [content, id] : files.added.value().items()) {
      const runtime::JsonValue value(
          id, formatted("{}: '{}'", files.added.place(), content));
      TESSERA_CHECK(
          !content.empty(),
          "{}: a token is empty; fetch the file again",
          files.added.place());
      const bool is_special = special.count(content) > 0;
      const int64_t number = value.integer(kTokenIds);
      const auto [other, is_new] = tokens.try_emplace(
          number,
          AddedToken{
              .content = content,
              .id = number,
              .is_special = is_special,
              .is_normalized = !is_special});
      TESSERA_CHECK(
          is_new,
          "{}: '{}' and '{}' have the same id, {}, so that transformers leaves one of them out; fetch the file again, or remove the one that the model was not trained with",
          files.added.place(),
          other->second.content,
          content,
          number);
    }
    return tokens;
  }
  const runtime::JsonValue listed =
      files.config.section("added_tokens_decoder");
  for (const auto& [key, item] : listed.value().items()) {
    TESSERA_CHECK(
        !key.empty() && key.size() <= 9 &&
            key.find_first_not_of("0123456789") == std::string::npos,
        "{}: '{}' is not a token id",
        listed.place(),
        key);
    TESSERA_CHECK(
        item.is_object(),
        "{}: '{}' is {}, not an object that describes a token",
        listed.place(),
        key,
        runtime::show_json(item));
    json described = item;
    const int64_t number = std::stoll(key);
    described["id"] = number;
    tokens.insert_or_assign(
        number,
        read_added_token(runtime::JsonValue(described, listed.place())));
  }
  return tokens;
}

std::map<std::string, std::string> read_chat_templates(
    const fs::path& folder,
    const runtime::JsonValue& config) {
  std::map<std::string, std::string> templates;
  const fs::path default_file = folder / "chat_template.jinja";
  const fs::path others = folder / "additional_chat_templates";
  if (fs::exists(default_file) || fs::is_directory(others)) {
    if (fs::exists(default_file)) {
      templates["default"] = runtime::read_text_file(default_file);
    }
    if (fs::is_directory(others)) {
      for (const auto& file : fs::directory_iterator(others)) {
        if (file.path().extension() == ".jinja") {
          templates[file.path().stem().string()] =
              runtime::read_text_file(file.path());
        }
      }
    }
    return templates;
  }
  const fs::path of_processor = folder / "chat_template.json";
  const runtime::JsonValue fields =
      fs::exists(of_processor) ? runtime::read_json_object(of_processor)
                               : config;
  const auto found = fields.value().find("chat_template");
  if (found != fields.value().end() && found->is_array()) {
    for (const json& item : *found) {
      const auto named =
          runtime::json_object(item, fields.place() + ": chat_template");
      templates[named.require<std::string>("name")] =
          named.require<std::string>("template");
    }
  } else if (fs::exists(of_processor)) {
    templates["default"] = fields.require<std::string>("chat_template");
  } else if (const auto text = fields.get<std::string>("chat_template")) {
    templates["default"] = *text;
  }
  return templates;
}

std::string find_template(
    const std::map<std::string, std::string>& templates,
    const char* name) {
  const auto found = templates.find(name);
  return found == templates.end() ? "" : found->second;
}

/// Collects the added tokens of a folder: those that its files list, then those
/// that have a name or are special in another way, with the next ids unless the
/// vocabulary has them.
class TokenAdder {
 public:
  explicit TokenAdder(TokenizerReader::Parts& parts) : parts_(parts) {
    for (const auto& [id, token] : parts.added) {
      known_.emplace(token.content, id);
    }
  }

  std::optional<int64_t> find(const std::string& content) const {
    const auto found = known_.find(content);
    if (found != known_.end()) {
      return found->second;
    }
    const auto id = parts_.model->find(content);
    return id ? std::optional<int64_t>(*id) : std::nullopt;
  }

  /// Appends a token that a file lists. As in transformers, the order of the
  /// ids there counts and not the ids: they may be another token's, or leave
  /// out some.
  void append_listed(AddedToken token) {
    const std::string content = token.content;
    const int64_t listed = token.id;
    append(std::move(token));
    if (const auto id = find(content); id && *id != listed) {
      log_warning(
          "{}: the added token '{}' is listed with id {}, but has {}, as in transformers: {}",
          parts_.origin,
          content,
          listed,
          *id,
          parts_.model->find(content)
              ? "its id in the vocabulary"
              : "added tokens follow the vocabulary without a gap");
    }
  }

  /// Appends a token with which a class extends the vocabulary.
  void append_of_class(const std::string& content) {
    append({.content = content, .is_special = true});
    of_class_.insert(content);
  }

  /// Adds a token with the id that the vocabulary has for it, or the next one;
  /// one that is known stays as it is, but for those of the class, which the
  /// files may describe.
  void append(AddedToken token) {
    if (const auto found = known_.find(token.content); found != known_.end()) {
      if (of_class_.erase(token.content) > 0) {
        token.id = found->second;
        parts_.added.insert_or_assign(found->second, std::move(token));
      }
      return;
    }
    const auto id = parts_.model->find(token.content);
    token.id = id ? *id : next_id();
    known_.emplace(token.content, token.id);
    parts_.added.insert_or_assign(token.id, std::move(token));
  }

 private:
  int64_t next_id() const {
    const int64_t added =
        parts_.added.empty() ? 0 : parts_.added.rbegin()->first + 1;
    return std::max<int64_t>(parts_.model->size(), added);
  }

  TokenizerReader::Parts& parts_;
  std::map<std::string, int64_t> known_;
  std::set<std::string> of_class_;
};

/// The tokens with which a class extends the vocabulary itself.
std::vector<std::string> class_last_tokens(
    const TokenizerClass& row,
    const runtime::JsonValue& config) {
  std::vector<std::string> tokens = row.last_tokens;
  if (row.has_extra_ids) {
    constexpr int64_t kExtraIds = 100;
    constexpr int64_t kMostExtraIds = 1 << 20;
    const int64_t count = config.get_or("extra_ids", kExtraIds);
    TESSERA_CHECK(
        count >= 0 && count <= kMostExtraIds,
        "{}: 'extra_ids' is {}, but must be from 0 to {}",
        config.place(),
        count,
        kMostExtraIds);
    for (int64_t i = count - 1; i >= 0; --i) {
      tokens.push_back(formatted("<extra_id_{}>", i));
    }
  }
  return tokens;
}

/// Adds what the files and the class say besides the vocabulary, and names the
/// special tokens.
/// @param row nullptr: none is known.
/// @param control pieces of the model, which are found in texts as given,
///     whatever the files say.
void add_folder_tokens(
    const FolderFiles& files,
    const TokenizerClass* row,
    bool has_json,
    const std::set<std::string>& control,
    TokenizerReader::Parts& parts) {
  TokenAdder adder(parts);
  if (row != nullptr && !has_json) {
    for (const std::string& token : class_last_tokens(*row, files.config)) {
      adder.append_of_class(token);
    }
  }
  std::vector<AddedToken> special;
  const auto named = std::move(parts.settings.special_tokens);
  parts.settings.special_tokens.clear();
  for (const char* key : kSpecialTokens) {
    const bool strips_left = row != nullptr && row->mask_strips_left &&
                             !has_json && std::string_view(key) == "mask_token";
    auto token = files.special_token(key, strips_left);
    if (!token && row != nullptr) {
      token = AddedToken{
          .content = special_of(*row, key),
          .is_special = true,
          .strips_left = strips_left};
      if (!adder.find(token->content)) {
        token.reset(); // the vocabulary was made without it
      }
    }
    for (const auto& [name, content] : named) {
      if (!token && name == key) {
        token = AddedToken{.content = content, .is_special = true};
      }
    }
    if (!token) {
      continue;
    }
    token->is_normalized =
        token->is_normalized && !control.contains(token->content);
    parts.settings.special_tokens.emplace_back(key, token->content);
    special.push_back(std::move(*token));
  }
  for (AddedToken& token : files.other_special_tokens()) {
    special.push_back(std::move(token));
  }
  std::set<std::string> contents;
  for (const AddedToken& token : special) {
    contents.insert(token.content);
  }
  for (auto& [number, token] : listed_tokens(files, contents)) {
    TESSERA_CHECK(
        row == nullptr || !row->refuses_added_tokens || has_json ||
            contents.contains(token.content) || adder.find(token.content),
        "{}: the tokenizer is a {}, and '{}' is in the list of added tokens alone, where transformers 4 does not find it in texts and 5 does. Remedy: save it as tokenizer.json with the version that the model was trained with (AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)), or name it in additional_special_tokens",
        parts.origin,
        row->names.front(),
        token.content);
    adder.append_listed(std::move(token));
  }
  for (AddedToken& token : special) {
    adder.append(std::move(token));
  }
}

/// All keys of a tokenizer_config.json.
runtime::KnownKeys tokenizer_keys() {
  runtime::KnownKeys keys{
      .read =
          {"add_bos_token",
           "add_eos_token",
           "add_prefix_space",
           "added_tokens_decoder",
           "additional_special_tokens",
           "chat_template",
           "clean_up_tokenization_spaces",
           "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
           "do_lower_case",
           "extra_ids",
           "extra_special_tokens",
           "keep_accents",
           "legacy",
           "max_len",
           "model_max_length",
           "padding_side",
           "strip_accents",
           "tokenize_chinese_chars",
           "tokenizer_class",
           "truncation_side"},
      // Names of files, what a call's own arguments say, what only the slow
      // classes or the default chat templates of old had.
      .without_effect =
          {"auto_map",
           "backend",
           "cache_dir",
           "device_map",
           "files_loaded",
           "from_slow",
           "init_inputs",
           "is_local",
           "local_files_only",
           "max_length",
           "merges_file",
           "model_input_names",
           "name_or_path",
           "pad_to_multiple_of",
           "pad_token_type_id",
           "padding",
           "processor_class",
           "response_schema",
           "response_template",
           "spaces_between_special_tokens",
           "special_tokens_map_file",
           "stride",
           "tokenizer_file",
           "transformers_version",
           "trim_offsets",
           "truncation",
           "truncation_strategy",
           "use_default_system_prompt",
           "use_fast",
           "verbose",
           "vocab_file"},
      .neutral = {
          {"chat_control_tokens", {json::array()}},
          {"do_basic_tokenize", {true}},
          {"errors", {"replace"}},
          {"never_split", {json::array()}},
          {"offset", {103}},
          {"mask_token_sent", {"<mask_1>"}},
          {"remove_space", {true}},
          {"sp_model_kwargs", {json::object()}},
          {"split_by_punct", {false}},
          {"split_special_tokens", {false}},
          {"vocab_type", {"spm"}},
          {"wordpieces_prefix", {"##"}}}};
  keys.read.insert(std::begin(kSpecialTokens), std::end(kSpecialTokens));
  return keys;
}

/// Names what tokenizer_config.json asks for in vain.
void log_ignored_tokenizer_keys(
    const FolderFiles& files,
    const TokenizerClass* row,
    const TokenizerReader::Parts& parts) {
  runtime::KnownKeys keys = tokenizer_keys();
  if (row == nullptr || !row->has_albert_normalizer) {
    keys.without_effect.insert("remove_space"); // ALBERT's
  }
  for (const auto& [key, item] : files.config.value().items()) {
    // Names of tokens that are found in texts anyway, such as "image_token".
    const json& content =
        item.is_object() && item.contains("content") ? item["content"] : item;
    const bool is_found =
        content.is_string() &&
        std::any_of(
            parts.added.begin(), parts.added.end(), [&](const auto& token) {
              return token.second.content == content.get<std::string>();
            });
    if (key.ends_with("_token") && is_found) {
      keys.without_effect.insert(key);
    }
  }
  runtime::log_ignored_keys(files.config, keys);
}

/// Spaces before punctuation go from decoded texts where the file says so: as
/// in transformers 5, not behind a model of merged pairs, whose texts have the
/// spaces that were there.
void clean_up_spaces(
    const runtime::JsonValue& config,
    TokenizerReader::Parts& parts) {
  if (config.get_or("clean_up_tokenization_spaces", false) &&
      (!parts.has_bpe_model ||
       config.get_or(
           "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
           false))) {
    parts.decoder = cleaning_decoder(std::move(parts.decoder));
  }
}

/// The side that a section of a tokenizer.json has, "padding" or "truncation".
std::optional<Side> json_side(const json& document, const char* section) {
  const auto found = document.find(section);
  if (found == document.end() || !found->is_object() ||
      !found->contains("direction")) {
    return std::nullopt;
  }
  return found->at("direction") == "Left" ? Side::kLeft : Side::kRight;
}

Side side_of(const runtime::JsonValue& config, const char* key, Side fallback) {
  const auto side = config.get<std::string>(key);
  TESSERA_CHECK(
      !side || *side == "right" || *side == "left",
      "{}: '{}' is '{}', but must be \"right\" or \"left\"",
      config.place(),
      key,
      *side);
  return !side ? fallback : *side == "left" ? Side::kLeft : Side::kRight;
}

/// @param document the tokenizer.json, or an empty object.
void read_folder_settings(
    const fs::path& folder,
    const FolderFiles& files,
    const TokenizerClass* row,
    const json& document,
    TokenizerSettings& result) {
  const auto length = files.config.get_or(
      "model_max_length", files.config.get_or("max_len", 0.0));
  if (length > 0 && length < kMostTokens) {
    result.model_max_length = static_cast<int64_t>(length);
  }
  const bool pads_left = row != nullptr && row->pads_left;
  result.padding_side = side_of(
      files.config,
      "padding_side",
      json_side(document, "padding")
          .value_or(pads_left ? Side::kLeft : Side::kRight));
  result.truncation_side = side_of(
      files.config,
      "truncation_side",
      json_side(document, "truncation").value_or(Side::kRight));
  const auto templates = read_chat_templates(folder, files.config);
  result.chat_template = find_template(templates, "default");
  result.tool_chat_template = find_template(templates, "tool_use");
}

/// A template of a class as the TemplateProcessing of a tokenizer.json.
class TemplateSection {
 public:
  TemplateSection(
      const TokenizerClass& row,
      const TokenizerReader::Parts& parts)
      : row_(row), parts_(parts) {}

  /// "cls_token $A sep_token:1": pieces with their types.
  json pieces(const std::string& text) {
    json all = json::array();
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      int64_t type = 0;
      if (word.ends_with(":1")) {
        type = 1;
        word.resize(word.size() - 2);
      }
      if (word[0] == '$') {
        all.push_back(
            {{"Sequence", {{"id", word.substr(1)}, {"type_id", type}}}});
        continue;
      }
      const std::string token = content_of(word);
      all.push_back({{"SpecialToken", {{"id", token}, {"type_id", type}}}});
    }
    return all;
  }

  json section(json single, json pair) const {
    return {
        {"type", "TemplateProcessing"},
        {"single", std::move(single)},
        {"pair", std::move(pair)},
        {"special_tokens", special_}};
  }

 private:
  /// The token that a word stands for, a name or the token itself.
  std::string content_of(const std::string& word) {
    const std::string class_token = special_of(row_, word);
    std::string token = class_token.empty() ? word : class_token;
    for (const auto& [key, content] : parts_.settings.special_tokens) {
      if (key == word) {
        token = content;
      }
    }
    std::optional<int64_t> id;
    for (const auto& [added_id, added] : parts_.added) {
      if (added.content == token) {
        id = added_id;
      }
    }
    TESSERA_CHECK(
        id.has_value(),
        "{} has no token '{}', which the tokenizer adds to texts; it is not the vocabulary of this class, or tokenizer_config.json names other tokens",
        parts_.origin,
        token);
    special_[token] = {{"id", token}, {"ids", {*id}}, {"tokens", {token}}};
    return token;
  }

  const TokenizerClass& row_;
  const TokenizerReader::Parts& parts_;
  json special_ = json::object();
};

/// Lets a class put its special tokens around texts.
void add_class_template(
    const TokenizerClass& row,
    const FolderFiles& files,
    TokenizerReader::Parts& parts) {
  std::string single = row.single;
  std::string pair = row.pair;
  if (single.empty()) {
    const bool begins =
        files.config.get_or("add_bos_token", row.adds_bos_token);
    const bool ends = files.config.get_or("add_eos_token", row.adds_eos_token);
    const auto around = [&](const std::string& text, const std::string& type) {
      return (begins ? "bos_token" + type + " " : "") + text + type +
             (ends ? " eos_token" + type : "");
    };
    single = around("$A", "");
    pair = single + " " + around("$B", row.second_type == 1 ? ":1" : "");
  }
  TemplateSection section(row, parts);
  const json first = section.pieces(single);
  const json both = section.pieces(pair);
  json processor = section.section(first, both);
  if (row.trims_offsets) {
    processor = {
        {"type", "Sequence"},
        {"processors",
         {{{"type", "ByteLevel"},
           {"add_prefix_space", files.config.get_or("add_prefix_space", false)},
           {"trim_offsets", true}},
          processor}}};
  }
  parts.post_processor = read_post_processor(
      runtime::JsonValue(processor, parts.origin),
      [&parts](int64_t id) -> const std::string& {
        const auto added = parts.added.find(id);
        return added != parts.added.end()
                   ? added->second.content
                   : parts.model->token(static_cast<uint32_t>(id));
      });
}

/// Gives pieces the ids that they have in a class.
void renumber_pieces(const TokenizerClass& row, SentencePieceModel& model) {
  const Renumbering& to = row.renumbering;
  if (to.first.empty()) {
    return;
  }
  TESSERA_CHECK(
      model.pieces.size() > to.replaced,
      "{} has {} pieces; a {} replaces the first {}; it is another tokenizer's model",
      model.origin,
      model.pieces.size(),
      row.names.front(),
      to.replaced);
  std::vector<SentencePiece> pieces;
  for (const std::string& text : to.first) {
    pieces.push_back(
        {.text = text,
         .kind = text == model.unk_piece ? SentencePieceKind::kUnknown
                                         : SentencePieceKind::kControl});
  }
  pieces.insert(
      pieces.end(),
      model.pieces.begin() + static_cast<int64_t>(to.replaced),
      model.pieces.end());
  model.pieces = std::move(pieces);
}

/// What ALBERT does to a text before the model's own normalization.
std::unique_ptr<const Normalizer> albert_normalizer(
    const runtime::JsonValue& config) {
  json parts = json::array();
  for (const char* quotes : {"``", "''"}) {
    parts.push_back(
        {{"type", "Replace"},
         {"pattern", {{"String", quotes}}},
         {"content", "\""}});
  }
  if (!config.get_or("keep_accents", false)) {
    parts.push_back({{"type", "NFKD"}});
    parts.push_back({{"type", "StripAccents"}});
  }
  if (config.get_or("do_lower_case", true)) {
    parts.push_back({{"type", "Lowercase"}});
  }
  const json sequence{{"type", "Sequence"}, {"normalizers", parts}};
  return read_normalizer(runtime::JsonValue(sequence, config.place()));
}

/// Pieces such as "9," are used only where nothing else fits, so that a comma
/// after a digit is a token of its own.
void avoid_digits_with_comma(SentencePieceModel& model) {
  constexpr float kPenalty = 100;
  for (SentencePiece& piece : model.pieces) {
    const size_t size = piece.text.size();
    if (size > 1 && piece.text[size - 1] == ',' &&
        piece.text[size - 2] >= '0' && piece.text[size - 2] <= '9') {
      piece.score -= kPenalty;
    }
  }
}

void read_sentencepiece(
    const SentencePieceModel& model,
    TokenizerReader::Parts& parts) {
  parts.origin = model.origin;
  parts.normalizer = sentencepiece_normalizer(model);
  parts.model = make_token_model(model);
  parts.has_bpe_model = model.algorithm == SentencePieceAlgorithm::kBpe;
  parts.decoder = sentencepiece_decoder(model);
  const auto name = [&](const char* key, const std::string& piece) {
    if (parts.model->find(piece)) {
      parts.settings.special_tokens.emplace_back(key, piece);
    }
  };
  name("bos_token", model.bos_piece);
  name("eos_token", model.eos_piece);
  name("unk_token", model.unk_piece);
  name("pad_token", model.pad_piece);
}

/// Lets the words of a class have their spaces when added tokens are found.
/// @param prefixes_text the space stands before a text that does not begin with
///     one, and not after added tokens: transformers' "legacy": false.
void divide_words(
    const TokenizerClass& row,
    SentencePieceModel model,
    bool prefixes_text,
    TokenizerReader::Parts& parts) {
  if ((row.word_spaces == WordSpaces::kModel && !prefixes_text) ||
      model.treat_whitespace_as_suffix) {
    return;
  }
  json sections = json::array();
  if (row.word_spaces == WordSpaces::kWhiteSpace) {
    sections.push_back({{"type", "WhitespaceSplit"}});
  }
  sections.push_back(
      {{"type", "Metaspace"},
       {"replacement", "\u2581"},
       {"prepend_scheme",
        !model.normalizer.add_dummy_prefix ? "never"
        : prefixes_text                    ? "first"
                                           : "always"},
       {"split", row.word_spaces != WordSpaces::kModel}});
  const json sequence{{"type", "Sequence"}, {"pretokenizers", sections}};
  parts.pre_tokenizer =
      read_pre_tokenizer(runtime::JsonValue(sequence, model.origin));
  model.normalizer.add_dummy_prefix = false;
  model.normalizer.escape_whitespaces = false;
  parts.normalizer = sentencepiece_normalizer(model);
}

SentencePieceModel sentencepiece_file(const fs::path& path) {
  return read_sentencepiece_model(runtime::read_text_file(path), path.string());
}

/// @return the control pieces of a model of sentencepiece.
std::set<std::string> read_class_vocabulary(
    const TokenizerClass& row,
    const VocabularyFile& file,
    const FolderFiles& files,
    TokenizerReader::Parts& parts) {
  if (file.kind == VocabularyKind::kSentencePiece) {
    SentencePieceModel model = sentencepiece_file(file.path);
    std::set<std::string> control;
    for (const SentencePiece& piece : model.pieces) {
      if (piece.kind == SentencePieceKind::kControl) {
        control.insert(piece.text);
      }
    }
    renumber_pieces(row, model);
    if (!files.config.get_or("add_prefix_space", true)) {
      model.normalizer.add_dummy_prefix = false;
    }
    if (row.has_albert_normalizer) {
      avoid_digits_with_comma(model);
    }
    read_sentencepiece(model, parts);
    divide_words(
        row,
        std::move(model),
        row.has_legacy_prefix && !files.config.get_or("legacy", true),
        parts);
    if (row.has_albert_normalizer) {
      std::vector<std::unique_ptr<const Normalizer>> both;
      both.push_back(albert_normalizer(files.config));
      both.push_back(std::move(parts.normalizer));
      parts.normalizer = normalizer_sequence(std::move(both));
    }
    return control;
  }
  json document;
  if (file.kind == VocabularyKind::kWordPiece) {
    document = wordpiece_document(file.path, row, files);
    overrule(document, &row, files.config);
  } else {
    document = byte_level_document(file.path.parent_path(), row, files);
  }
  read_tokenizer_json(document, file.path.string(), parts);
  return {};
}

} // namespace

Tokenizer Tokenizer::from_file(const fs::path& path) {
  const auto parts = TokenizerReader::make_parts();
  if (path.extension() == ".model") {
    read_sentencepiece(sentencepiece_file(path), *parts);
  } else {
    read_tokenizer_json(
        runtime::parse_json(runtime::read_text_file(path), path.string()),
        path.string(),
        *parts);
  }
  return TokenizerReader::tokenizer(parts);
}

Tokenizer Tokenizer::from_path(const fs::path& path) {
  return fs::is_directory(path) ? from_folder(path) : from_file(path);
}

std::string tokenizer_config_with_class(const fs::path& path) {
  constexpr const char* kAsTheJsonSays = "PreTrainedTokenizerFast";
  json config = json::object();
  const TokenizerClass* row = nullptr;
  bool is_plain_model = path.extension() == ".model";
  if (fs::is_directory(path)) {
    const FolderFiles files(path);
    config = files.config.value();
    if (!files.config.get_or<std::string>("tokenizer_class", "").empty()) {
      return config.dump(2) + "\n";
    }
    if (!files.class_name().empty()) {
      config["tokenizer_class"] = files.class_name();
      return config.dump(2) + "\n";
    }
    if (fs::exists(path / "tokenizer.json")) {
      row = class_beside_json(files);
    } else {
      try {
        row = choose_class(path, files).first;
      } catch (const Error&) {
        return config.dump(2) + "\n";
      }
      is_plain_model = row->names.empty();
    }
  }
  if (is_plain_model) {
    // transformers reads all models of sentencepiece by this one.
    config["tokenizer_class"] = "LlamaTokenizer";
    for (const char* key : {"add_bos_token", "add_eos_token"}) {
      config.emplace(key, false);
    }
  } else {
    config["tokenizer_class"] =
        row != nullptr ? row->names.front() : kAsTheJsonSays;
  }
  return config.dump(2) + "\n";
}

std::map<std::string, std::string> chat_templates_in(const fs::path& folder) {
  return read_chat_templates(
      folder, runtime::read_json_object(folder / "tokenizer_config.json"));
}

Tokenizer Tokenizer::from_folder(const fs::path& folder) {
  TESSERA_CHECK(
      fs::is_directory(folder),
      "the model folder {} does not exist; give the path of a Hugging Face model's folder, e.g. one that `hf download NAME --local-dir FOLDER` made",
      folder);
  const FolderFiles files(folder);
  const auto parts = TokenizerReader::make_parts();
  const fs::path json_file = folder / "tokenizer.json";
  const bool has_json = fs::exists(json_file);
  const TokenizerClass* row = nullptr;
  std::set<std::string> control;
  json document = json::object();
  if (has_json) {
    row = class_beside_json(files);
    check_not_refused(row, folder, files, has_json);
    document = runtime::parse_json(
        runtime::read_text_file(json_file), json_file.string());
    TESSERA_CHECK(
        document.is_object(), "{}: is not a JSON object", json_file.string());
    overrule(document, row, files.config);
    read_tokenizer_json(document, json_file.string(), *parts);
    if (row == nullptr &&
        is_type(document.value("model", json()), "WordPiece")) {
      row = &default_tokenizer_class(VocabularyKind::kWordPiece);
    }
  } else {
    const auto [chosen, vocabulary] = choose_class(folder, files);
    row = chosen;
    control = read_class_vocabulary(*row, vocabulary, files, *parts);
  }
  add_folder_tokens(files, row, has_json, control, *parts);
  clean_up_spaces(files.config, *parts);
  log_ignored_tokenizer_keys(files, row, *parts);
  read_folder_settings(folder, files, row, document, parts->settings);
  if (!has_json) {
    add_class_template(*row, files, *parts);
  }
  return TokenizerReader::tokenizer(parts);
}

} // namespace tessera::text
