// SPDX-License-Identifier: Apache-2.0
// Reads the tokenizer of a Hugging Face folder, whichever files it has.
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/json_fields.h"
#include "tessera/zoo/tokenizer/sentencepiece_text.h"
#include "tessera/zoo/tokenizer/tokenizer_parts.h"
#include "tessera/zoo/tokenizer/vocabulary.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <sstream>
#include <utility>

namespace tessera::zoo {

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

/// The content of a token that is written as "[CLS]" or as {"content": "[CLS]",
/// ...}; empty if there is none.
std::string token_content(const JsonFields& file, const char* key) {
  const auto found = file.object().find(key);
  if (found == file.object().end() || found->is_null()) {
    return "";
  }
  return found->is_object() ? file.section(key).require<std::string>("content")
                            : file.require<std::string>(key);
}

/// The files of a folder beside the vocabulary.
struct Settings {
  explicit Settings(const fs::path& folder)
      : config(JsonFields::from_file(folder / "tokenizer_config.json")),
        special(JsonFields::from_file(folder / "special_tokens_map.json")) {}

  std::string token(const char* key, const char* otherwise = "") const {
    const std::string own = token_content(config, key);
    const std::string other = own.empty() ? token_content(special, key) : own;
    return other.empty() ? otherwise : other;
  }
  /// The tokenizer's class without "Fast".
  std::string kind() const {
    auto kind = config.get_or<std::string>("tokenizer_class", "");
    if (kind.ends_with("Fast")) {
      kind.resize(kind.size() - 4);
    }
    return kind;
  }

  JsonFields config;
  JsonFields special;
};

json special_token(const std::string& content, int64_t id, bool strips_left) {
  return {
      {"id", id},
      {"content", content},
      {"single_word", false},
      {"lstrip", strips_left},
      {"rstrip", false},
      {"normalized", false},
      {"special", true}};
}

/// The tokens of a vocabulary that `names` says are special.
json special_tokens(
    const json& vocab,
    const Settings& settings,
    std::initializer_list<std::pair<const char*, const char*>> names) {
  json tokens = json::array();
  std::set<std::string> seen;
  for (const auto& [key, otherwise] : names) {
    const std::string content = settings.token(key, otherwise);
    if (vocab.contains(content) && vocab.at(content).is_number_integer() &&
        seen.insert(content).second) {
      tokens.push_back(special_token(
          content,
          vocab.at(content).get<int64_t>(),
          std::string(key) == "mask_token" && settings.kind() == "Roberta"));
    }
  }
  return tokens;
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

using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

/// The names of special tokens where no file says them.
SpecialTokens default_special_tokens(const json& document) {
  if (document.contains("model") && is_type(document["model"], "WordPiece")) {
    return {
        {"unk_token", "[UNK]"},
        {"sep_token", "[SEP]"},
        {"pad_token", "[PAD]"},
        {"cls_token", "[CLS]"},
        {"mask_token", "[MASK]"}};
  }
  return {};
}

/// What the tokenizer.json of a BERT folder with a vocab.txt would be.
json bert_document(const fs::path& path, const Settings& settings) {
  const Vocabulary listed = Vocabulary::from_vocab_file(path);
  json vocab = json::object();
  for (int64_t id = 0; id < listed.size(); ++id) {
    vocab[listed.token(id)] = id;
  }
  const std::string unk = settings.token("unk_token", "[UNK]");
  const std::string sep = settings.token("sep_token", "[SEP]");
  const std::string cls = settings.token("cls_token", "[CLS]");
  for (const std::string& token : {unk, sep, cls}) {
    TESSERA_CHECK(
        vocab.contains(token),
        "{} has no line '{}'; it is not the vocabulary of a BERT model, or tokenizer_config.json names other tokens",
        path.string(),
        token);
  }
  return {
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", true},
        {"handle_chinese_chars", true},
        {"strip_accents", nullptr},
        {"lowercase", true}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor",
       {{"type", "BertProcessing"},
        {"sep", {sep, vocab[sep]}},
        {"cls", {cls, vocab[cls]}}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
      {"added_tokens",
       special_tokens(
           vocab,
           settings,
           {{"unk_token", "[UNK]"},
            {"sep_token", "[SEP]"},
            {"pad_token", "[PAD]"},
            {"cls_token", "[CLS]"},
            {"mask_token", "[MASK]"}})},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", unk},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", 100},
        {"vocab", vocab}}}};
}

/// What the tokenizer.json of a GPT-2 or RoBERTa folder with vocab.json and
/// merges.txt would be.
json byte_level_document(const fs::path& folder, const Settings& settings) {
  const bool is_roberta = settings.kind() == "RobertaTokenizer" ||
                          settings.kind() == "BartTokenizer" ||
                          settings.kind() == "LongformerTokenizer";
  json vocab = JsonFields::from_file(folder / "vocab.json").object();
  json merges = json::array();
  for (const std::string& line : lines_of(folder / "merges.txt")) {
    if (!line.empty() && line.compare(0, 9, "#version:") != 0) {
      merges.push_back(line);
    }
  }
  const bool adds_space = settings.config.get_or("add_prefix_space", false);
  const json byte_level{
      {"type", "ByteLevel"},
      {"add_prefix_space", adds_space},
      {"trim_offsets", is_roberta},
      {"use_regex", true}};
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
        {"merges", merges}}}};
  if (is_roberta) {
    const std::string sep = settings.token("sep_token", "</s>");
    const std::string cls = settings.token("cls_token", "<s>");
    for (const std::string& token : {sep, cls}) {
      TESSERA_CHECK(
          vocab.contains(token),
          "{} has no token '{}', which a RoBERTa tokenizer adds to texts",
          (folder / "vocab.json").string(),
          token);
    }
    document["post_processor"] = {
        {"type", "RobertaProcessing"},
        {"sep", {sep, vocab[sep]}},
        {"cls", {cls, vocab[cls]}},
        {"trim_offsets", true},
        {"add_prefix_space", adds_space}};
    document["added_tokens"] = special_tokens(
        vocab,
        settings,
        {{"bos_token", "<s>"},
         {"pad_token", "<pad>"},
         {"eos_token", "</s>"},
         {"unk_token", "<unk>"},
         {"sep_token", "</s>"},
         {"cls_token", "<s>"},
         {"mask_token", "<mask>"}});
  } else {
    document["added_tokens"] = special_tokens(
        vocab,
        settings,
        {{"bos_token", "<|endoftext|>"},
         {"eos_token", "<|endoftext|>"},
         {"unk_token", "<|endoftext|>"},
         {"pad_token", ""}});
  }
  document["model"]["vocab"] = std::move(vocab);
  return document;
}

/// transformers lets tokenizer_config.json overrule these of tokenizer.json.
void overrule(json& document, const Settings& settings) {
  const JsonFields& config = settings.config;
  json& normalizer = document["normalizer"];
  if (is_type(normalizer, "BertNormalizer") &&
      settings.kind() == "BertTokenizer") {
    const bool lower = config.get_or("do_lower_case", true);
    normalizer["lowercase"] = lower;
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
}

/// The added tokens that tokenizer_config.json lists, as tokenizer.json would.
json listed_tokens(const JsonFields& config) {
  json tokens = json::array();
  const JsonFields listed = config.section("added_tokens_decoder");
  for (const auto& [key, item] : listed.object().items()) {
    TESSERA_CHECK(
        !key.empty() && key.size() <= 9 &&
            key.find_first_not_of("0123456789") == std::string::npos,
        "{}: '{}' is not a token id",
        listed.origin(),
        key);
    TESSERA_CHECK(
        item.is_object(),
        "{}: '{}' is {}, not an object that describes a token",
        listed.origin(),
        key,
        runtime::show_json(item));
    tokens.push_back(item);
    tokens.back()["id"] = std::stoll(key);
  }
  return tokens;
}

/// Adds the tokens that only tokenizer_config.json lists.
void add_listed_tokens(json& document, const Settings& settings) {
  json& added = document["added_tokens"];
  if (!added.is_array()) {
    added = json::array();
  }
  std::set<int64_t> known;
  for (const json& token : added) {
    if (token.is_object() && token.contains("id") &&
        token["id"].is_number_integer()) {
      known.insert(token["id"].get<int64_t>());
    }
  }
  for (const json& token : listed_tokens(settings.config)) {
    if (known.count(token["id"].get<int64_t>()) == 0) {
      added.push_back(token);
    }
  }
}

std::string read_chat_template(
    const fs::path& folder,
    const JsonFields& config) {
  const fs::path own = folder / "chat_template.jinja";
  if (fs::exists(own)) {
    return runtime::read_text_file(own);
  }
  const fs::path of_processor = folder / "chat_template.json";
  if (fs::exists(of_processor)) {
    return JsonFields::from_file(of_processor)
        .require<std::string>("chat_template");
  }
  const auto found = config.object().find("chat_template");
  if (found == config.object().end() || !found->is_array()) {
    return config.get_or<std::string>("chat_template", "");
  }
  for (const json& item : *found) {
    const JsonFields named(item, config.origin() + ": chat_template");
    if (named.require<std::string>("name") == "default") {
      return named.require<std::string>("template");
    }
  }
  return "";
}

TokenizerSettings read_settings(
    const fs::path& folder,
    const Settings& settings) {
  TokenizerSettings result;
  for (const char* key : kSpecialTokens) {
    const std::string token = settings.token(key);
    if (!token.empty()) {
      result.special_tokens.emplace_back(key, token);
    }
  }
  const auto length = settings.config.get_or("model_max_length", 0.0);
  if (length > 0 && length < kMostTokens) {
    result.model_max_length = static_cast<int64_t>(length);
  }
  const auto side =
      settings.config.get_or<std::string>("padding_side", "right");
  TESSERA_CHECK(
      side == "right" || side == "left",
      "{}: 'padding_side' is '{}', but must be \"right\" or \"left\"",
      settings.config.origin(),
      side);
  result.padding_side = side == "left" ? Side::kLeft : Side::kRight;
  result.chat_template = read_chat_template(folder, settings.config);
  return result;
}

/// Whether a tokenizer of sentencepiece adds its eos_token to texts, by the
/// classes of transformers.
bool ends_texts(const Settings& settings) {
  const std::string kind = settings.kind();
  return settings.config.get_or(
      "add_eos_token", kind == "T5Tokenizer" || kind == "MT5Tokenizer");
}

bool begins_texts(const Settings& settings) {
  return settings.config.get_or(
      "add_bos_token", settings.kind() == "LlamaTokenizer");
}

void read_sentencepiece(const fs::path& path, TokenizerReader::Parts& parts) {
  const SentencePieceModel model =
      read_sentencepiece_model(runtime::read_text_file(path), path.string());
  parts.origin = path.string();
  parts.normalizer = sentencepiece_normalizer(model);
  parts.model = make_token_model(model);
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

/// What transformers adds to a sentencepiece model: special tokens that stand
/// in texts, and those at their ends.
void complete_sentencepiece(
    const Settings& settings,
    TokenizerReader::Parts& parts) {
  for (const auto& [key, token] : parts.settings.special_tokens) {
    if (const auto id = parts.model->find(token)) {
      parts.added.emplace(
          *id, AddedToken{.content = token, .id = *id, .is_special = true});
    }
  }
  for (const json& item : listed_tokens(settings.config)) {
    const runtime::JsonValue token(item, settings.config.origin());
    AddedToken added = read_added_token(token);
    parts.added.insert_or_assign(added.id, added);
  }
  const auto ids_of = [&](bool adds, const char* key) {
    std::vector<int64_t> ids;
    for (const auto& [own, token] : parts.settings.special_tokens) {
      if (adds && own == key && parts.model->find(token)) {
        ids.push_back(*parts.model->find(token));
      }
    }
    return ids;
  };
  parts.post_processor = surrounding_post_processor(
      ids_of(begins_texts(settings), "bos_token"),
      ids_of(ends_texts(settings), "eos_token"));
}

} // namespace

Tokenizer Tokenizer::from_file(const fs::path& path) {
  const auto parts = TokenizerReader::make_parts();
  if (path.extension() == ".model") {
    read_sentencepiece(path, *parts);
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

Tokenizer Tokenizer::from_folder(const fs::path& folder) {
  TESSERA_CHECK(
      fs::is_directory(folder),
      "the model folder {} does not exist; give the path of a Hugging Face model's folder, e.g. one that `hf download NAME --local-dir FOLDER` made",
      folder);
  const Settings settings(folder);
  const auto parts = TokenizerReader::make_parts();
  json document;
  fs::path file;
  if (fs::exists(file = folder / "tokenizer.json")) {
    document =
        runtime::parse_json(runtime::read_text_file(file), file.string());
    TESSERA_CHECK(
        document.is_object(), "{}: is not a JSON object", file.string());
    overrule(document, settings);
  } else if (fs::exists(file = folder / "vocab.txt")) {
    document = bert_document(file, settings);
    overrule(document, settings);
  } else if (
      fs::exists(file = folder / "vocab.json") &&
      fs::exists(folder / "merges.txt")) {
    document = byte_level_document(folder, settings);
  }
  if (!document.is_null()) {
    add_listed_tokens(document, settings);
    read_tokenizer_json(document, file.string(), *parts);
    for (const auto& [key, token] : default_special_tokens(document)) {
      if (parts->model->find(token)) {
        parts->settings.special_tokens.emplace_back(key, token);
      }
    }
  } else {
    for (const char* name :
         {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"}) {
      if (fs::exists(file = folder / name)) {
        break;
      }
    }
    TESSERA_CHECK(
        fs::exists(file),
        "{} has no tokenizer: none of tokenizer.json, vocab.txt, vocab.json with merges.txt, tokenizer.model, spiece.model and sentencepiece.bpe.model is there. Copy those of the tokenizer that made its training data there (`tessera tokenize` keeps it in PREFIX.tokenizer/), or fetch the folder again with them.",
        folder.string());
    read_sentencepiece(file, *parts);
  }
  const auto named = std::move(parts->settings.special_tokens);
  parts->settings = read_settings(folder, settings);
  for (const auto& [key, token] : named) { // those that no other file names
    auto& all = parts->settings.special_tokens;
    if (std::none_of(all.begin(), all.end(), [&key = key](const auto& own) {
          return own.first == key;
        })) {
      all.emplace_back(key, token);
    }
  }
  if (document.is_null()) {
    complete_sentencepiece(settings, *parts);
  }
  return TokenizerReader::tokenizer(parts);
}

} // namespace tessera::zoo
