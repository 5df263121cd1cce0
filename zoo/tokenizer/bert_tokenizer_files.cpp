// SPDX-License-Identifier: Apache-2.0
// Reads vocab.txt, tokenizer.json and tokenizer_config.json.
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/zoo/tokenizer/bert_tokenizer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <optional>

namespace tessera {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// An absent file reads as an empty object.
json read_object(const fs::path& path) {
  if (!fs::exists(path)) {
    return json::object();
  }
  std::ifstream file(path, std::ios::binary);
  json object = json::parse(file, nullptr, /*allow_exceptions=*/false);
  TESSERA_CHECK(
      object.is_object(),
      path,
      " is not a JSON object; fetch the model's folder again");
  return object;
}

// The value of a key, or nothing where it is absent or null.
template <typename Value>
std::optional<Value> optional_value(
    const json& object,
    const char* key,
    const fs::path& origin) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return std::nullopt;
  }
  try {
    return found->get<Value>();
  } catch (const json::exception&) {
    TESSERA_FAIL(
        origin, ": '", key, "' is ", found->dump(), ", of the wrong type");
  }
}

// A section of tokenizer.json; absent or null reads as an empty object.
json section(const json& object, const char* key, const fs::path& origin) {
  const json found = object.value(key, json());
  if (found.is_null()) {
    return json::object();
  }
  TESSERA_CHECK(
      found.is_object(), origin, ": '", key, "' is not a JSON object");
  return found;
}

void check_type(
    const json& object,
    const char* where,
    const char* expected,
    const fs::path& origin) {
  const auto type = optional_value<std::string>(object, "type", origin);
  TESSERA_CHECK(
      !type || *type == expected,
      origin,
      ": ",
      where,
      " has type '",
      type.value_or(""),
      "', but a BERT tokenizer's is '",
      expected,
      "'; this folder holds another kind of tokenizer");
}

// Special tokens stand as "[CLS]" or as {"content": "[CLS]", ...}.
std::string token_name(
    const json& config,
    const char* key,
    const std::string& otherwise,
    const fs::path& origin) {
  const auto found = config.find(key);
  if (found != config.end() && found->is_object()) {
    return optional_value<std::string>(*found, "content", origin)
        .value_or(otherwise);
  }
  return optional_value<std::string>(config, key, origin).value_or(otherwise);
}

using TokenIds = std::vector<std::pair<std::string, std::int64_t>>;

// An added token that is found in the raw text as it stands. `normalized` ones
// would be looked for after lower-casing, which nothing here does.
std::string added_token(const json& token, const fs::path& origin) {
  const auto flag = [&](const char* key) {
    return optional_value<bool>(token, key, origin).value_or(false);
  };
  const auto content = optional_value<std::string>(token, "content", origin);
  TESSERA_CHECK(
      content && !content->empty(), origin, ": an added token has no content");
  TESSERA_CHECK(
      !flag("single_word") && !flag("normalized"),
      origin,
      ": added token '",
      *content,
      "' is to be found as a single word or in normalised text, which is not "
      "supported; add it with single_word=False, normalized=False");
  return *content;
}

// Added tokens with their ids from both files.
TokenIds added_tokens(
    const json& tokenizer,
    const fs::path& tokenizer_path,
    const json& config,
    const fs::path& config_path) {
  TokenIds result;
  for (const json& token : tokenizer.value("added_tokens", json::array())) {
    const auto id = optional_value<std::int64_t>(token, "id", tokenizer_path);
    TESSERA_CHECK(id, tokenizer_path, ": an added token has no id");
    result.emplace_back(added_token(token, tokenizer_path), *id);
  }
  const json decoder = section(config, "added_tokens_decoder", config_path);
  for (const auto& [key, token] : decoder.items()) {
    TESSERA_CHECK(
        !key.empty() && key.size() <= 9 &&
            std::all_of(
                key.begin(), key.end(), [](char c) {
                  return c >= '0' && c <= '9';
                }),
        config_path,
        ": '",
        key,
        "' in added_tokens_decoder is not a token id");
    result.emplace_back(added_token(token, config_path), std::stoll(key));
  }
  return result;
}

TokenIds vocabulary_tokens(const json& model, const fs::path& origin) {
  TokenIds tokens;
  for (const auto& [token, id] : model.at("vocab").items()) {
    TESSERA_CHECK(
        id.is_number_integer(),
        origin,
        ": the id of token '",
        token,
        "' is ",
        id.dump(),
        ", not an integer");
    tokens.emplace_back(token, id.get<std::int64_t>());
  }
  return tokens;
}

// The vocabulary of one of the two files, with the added tokens that continue
// it.
Vocabulary read_vocabulary(
    const fs::path& folder,
    const json& model,
    const fs::path& tokenizer_path,
    const TokenIds& added) {
  std::string origin = "the vocabulary in " + tokenizer_path.string();
  TokenIds tokens;
  if (model.contains("vocab")) {
    tokens = vocabulary_tokens(model, tokenizer_path);
  } else {
    origin = "the vocabulary " + (folder / "vocab.txt").string();
    const auto listed = Vocabulary::from_vocab_file(folder / "vocab.txt");
    for (std::int64_t id = 0; id < listed.size(); ++id) {
      tokens.emplace_back(listed.token(id), id);
    }
  }
  TokenIds beyond;
  for (const auto& token : added) {
    if (token.second >= static_cast<std::int64_t>(tokens.size())) {
      beyond.push_back(token);
    }
  }
  // Both files may list the same added token.
  std::sort(beyond.begin(), beyond.end());
  beyond.erase(std::unique(beyond.begin(), beyond.end()), beyond.end());
  tokens.insert(tokens.end(), beyond.begin(), beyond.end());
  return Vocabulary(std::move(tokens), origin);
}

// A parsed file with the path that messages name.
struct Parsed {
  fs::path path;
  json object;
};

Parsed parsed(const fs::path& path) {
  return {path, read_object(path)};
}

void check_is_bert(const Parsed& config, const Parsed& tokenizer) {
  const auto kind = optional_value<std::string>(
      config.object, "tokenizer_class", config.path);
  TESSERA_CHECK(
      !kind || *kind == "BertTokenizer" || *kind == "BertTokenizerFast",
      config.path,
      ": tokenizer_class is '",
      kind.value_or(""),
      "'; only BertTokenizer is supported");
  struct Part {
    const char* key;
    const char* type;
  };
  for (const Part& part :
       {Part{"normalizer", "BertNormalizer"},
        Part{"pre_tokenizer", "BertPreTokenizer"},
        Part{"model", "WordPiece"}}) {
    check_type(
        section(tokenizer.object, part.key, tokenizer.path),
        part.key,
        part.type,
        tokenizer.path);
  }
  const auto clean_text = optional_value<bool>(
      section(tokenizer.object, "normalizer", tokenizer.path),
      "clean_text",
      tokenizer.path);
  TESSERA_CHECK(
      clean_text.value_or(true),
      tokenizer.path,
      ": the normalizer has clean_text=false; BERT always cleans its text");
}

BertTextOptions text_options(const Parsed& config, const Parsed& tokenizer) {
  const auto flag = [&](const char* key, bool otherwise) {
    return optional_value<bool>(config.object, key, config.path)
        .value_or(otherwise);
  };
  BertTextOptions options;
  options.lower_case = flag("do_lower_case", true);
  options.strip_accents = flag("strip_accents", options.lower_case);
  options.split_chinese = flag("tokenize_chinese_chars", true);

  const json normalizer =
      section(tokenizer.object, "normalizer", tokenizer.path);
  const auto warn_when_overruled = [&](const char* key, bool used) {
    const auto found = optional_value<bool>(normalizer, key, tokenizer.path);
    if (found && *found != used) {
      log_warning(
          tokenizer.path.string(),
          " says ",
          key,
          (*found ? "=true, but " : "=false, but "),
          config.path.string(),
          " or BERT's default says otherwise and wins, as in transformers; "
          "set it in tokenizer_config.json");
    }
  };
  warn_when_overruled("lowercase", options.lower_case);
  warn_when_overruled("strip_accents", options.strip_accents);
  warn_when_overruled("handle_chinese_chars", options.split_chinese);
  return options;
}

WordPieceOptions wordpiece_options(
    const Parsed& config,
    const Parsed& tokenizer) {
  WordPieceOptions options;
  options.unk_token =
      token_name(config.object, "unk_token", options.unk_token, config.path);
  const json model = section(tokenizer.object, "model", tokenizer.path);
  options.continuing_prefix =
      optional_value<std::string>(
          model, "continuing_subword_prefix", tokenizer.path)
          .value_or(options.continuing_prefix);
  options.max_characters_per_word =
      optional_value<std::int64_t>(
          model, "max_input_chars_per_word", tokenizer.path)
          .value_or(options.max_characters_per_word);
  return options;
}

} // namespace

BertTokenizer BertTokenizer::from_folder(const fs::path& folder) {
  TESSERA_CHECK(
      fs::is_directory(folder),
      "the model folder ",
      folder,
      " does not exist; give the path of an unpacked Hugging Face model");
  const Parsed config = parsed(folder / "tokenizer_config.json");
  const Parsed tokenizer = parsed(folder / "tokenizer.json");
  check_is_bert(config, tokenizer);

  BertTokenizerOptions options;
  options.text = text_options(config, tokenizer);
  options.wordpiece = wordpiece_options(config, tokenizer);
  const auto name = [&](const char* key, const std::string& otherwise) {
    return token_name(config.object, key, otherwise, config.path);
  };
  options.cls_token = name("cls_token", options.cls_token);
  options.sep_token = name("sep_token", options.sep_token);
  options.pad_token = name("pad_token", options.pad_token);
  options.whole_tokens = {name("mask_token", "[MASK]")};
  const TokenIds added = added_tokens(
      tokenizer.object, tokenizer.path, config.object, config.path);
  for (const auto& [token, id] : added) {
    options.whole_tokens.push_back(token);
  }
  // "No limit" is written as 1e30.
  const double length =
      optional_value<double>(config.object, "model_max_length", config.path)
          .value_or(0);
  if (length >= 1 && length < 1e9) {
    options.model_max_length = static_cast<std::int64_t>(length);
  }
  return BertTokenizer(
      read_vocabulary(
          folder,
          section(tokenizer.object, "model", tokenizer.path),
          tokenizer.path,
          added),
      std::move(options));
}

} // namespace tessera
