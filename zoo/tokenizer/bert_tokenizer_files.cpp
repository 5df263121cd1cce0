// SPDX-License-Identifier: Apache-2.0
// Reads vocab.txt, tokenizer.json and tokenizer_config.json.
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/zoo/json_fields.h"
#include "tessera/zoo/tokenizer/bert_tokenizer.h"

#include <algorithm>

namespace tessera::zoo {
namespace {

namespace fs = std::filesystem;

using TokenIds = std::vector<std::pair<std::string, std::int64_t>>;

void check_is_bert(const JsonFields& config, const JsonFields& tokenizer) {
  const auto kind = config.get_or<std::string>("tokenizer_class", "");
  TESSERA_CHECK(
      kind.empty() || kind == "BertTokenizer" || kind == "BertTokenizerFast",
      "{}: tokenizer_class is '{}'; only BertTokenizer is supported. For other models, tokenize with transformers and train on the ids with \"task\": \"examples\" (configs/README.md).",
      config.origin(),
      kind);
  struct Part {
    const char* key;
    const char* type;
  };
  for (const Part& part :
       {Part{"normalizer", "BertNormalizer"},
        Part{"pre_tokenizer", "BertPreTokenizer"},
        Part{"model", "WordPiece"}}) {
    const JsonFields fields = tokenizer.section(part.key);
    const auto type = fields.get_or<std::string>("type", part.type);
    TESSERA_CHECK(
        type == part.type,
        "{} has type '{}', but a BERT tokenizer's is '{}'; this folder holds another kind of tokenizer",
        fields.origin(),
        type,
        part.type);
  }
  TESSERA_CHECK(
      tokenizer.section("normalizer").get_or("clean_text", true),
      "{}: the normalizer has clean_text=false; BERT always cleans its text",
      tokenizer.origin());
}

BertTextOptions text_options(
    const JsonFields& config,
    const JsonFields& tokenizer) {
  BertTextOptions options;
  options.lower_case = config.get_or("do_lower_case", true);
  options.strip_accents = config.get_or("strip_accents", options.lower_case);
  options.split_chinese = config.get_or("tokenize_chinese_chars", true);

  const JsonFields normalizer = tokenizer.section("normalizer");
  const auto warn_when_overruled = [&](const char* key, bool used) {
    if (normalizer.get_or(key, used) != used) {
      log_warning(
          "{} sets {}{}{} or BERT's default differs and takes precedence, as in transformers; set it in tokenizer_config.json",
          normalizer.origin(),
          key,
          (used ? "=false, but " : "=true, but "),
          config.origin());
    }
  };
  warn_when_overruled("lowercase", options.lower_case);
  warn_when_overruled("strip_accents", options.strip_accents);
  warn_when_overruled("handle_chinese_chars", options.split_chinese);
  return options;
}

// Special tokens are written as "[CLS]" or as {"content": "[CLS]", ...}.
std::string token_name(
    const JsonFields& config,
    const char* key,
    const std::string& otherwise) {
  const auto found = config.object().find(key);
  if (found != config.object().end() && found->is_object()) {
    return config.section(key).require<std::string>("content");
  }
  return config.get_or(key, otherwise);
}

// The special tokens that tokenizer_config.json names.
void check_known(
    const JsonFields& config,
    const Vocabulary& vocabulary,
    const std::string& origin) {
  for (const char* key : {"unk_token", "cls_token", "sep_token", "pad_token"}) {
    const std::string token = token_name(config, key, "");
    const nlohmann::json given = config.object().value(key, nlohmann::json());
    TESSERA_CHECK(
        given.is_null() || vocabulary.find(token),
        "{}: '{}' is {}, a token that {} lacks; do the two files belong together?",
        config.origin(),
        key,
        runtime::show_json(given),
        origin);
  }
  TESSERA_CHECK(
      !token_name(config, "mask_token", "[MASK]").empty(),
      "{}: 'mask_token' is {}, which is empty",
      config.origin(),
      runtime::show_json(
          config.object().value("mask_token", nlohmann::json())));
}

// An added token that is matched in the raw text. `normalized` ones would have
// to be matched after lower-casing, which is not implemented.
std::string added_token(const JsonFields& token) {
  auto content = token.require<std::string>("content");
  TESSERA_CHECK(!content.empty(), "{} has empty content", token.origin());
  TESSERA_CHECK(
      !token.get_or("single_word", false) && !token.get_or("normalized", false),
      "{}: the added token '{}' is matched as a single word or in normalized text, which is not supported; add it with single_word=False, normalized=False",
      token.origin(),
      content);
  return content;
}

// The added tokens of both files with their ids, sorted, without duplicates.
TokenIds added_tokens(const JsonFields& config, const JsonFields& tokenizer) {
  TokenIds result;
  const auto listed = tokenizer.object().find("added_tokens");
  if (listed != tokenizer.object().end()) {
    for (const nlohmann::json& item : *listed) {
      const JsonFields token(item, tokenizer.origin() + ": added_tokens");
      result.emplace_back(
          added_token(token), token.require<std::int64_t>("id"));
    }
  }
  const JsonFields decoder = config.section("added_tokens_decoder");
  for (const auto& [key, item] : decoder.object().items()) {
    TESSERA_CHECK(
        !key.empty() && key.size() <= 9 &&
            key.find_first_not_of("0123456789") == std::string::npos,
        "{}: '{}' is not a token id",
        decoder.origin(),
        key);
    result.emplace_back(
        added_token({item, decoder.origin() + " " + key}), std::stoll(key));
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

// The file, of the two, that contains the vocabulary.
std::string origin_of_vocabulary(
    const fs::path& folder,
    const JsonFields& model) {
  return model.contains("vocab") ? model.origin()
                                 : (folder / "vocab.txt").string();
}

// The vocabulary of one of the two files, and the added tokens that continue
// it.
Vocabulary read_vocabulary(
    const fs::path& folder,
    const JsonFields& model,
    const TokenIds& added) {
  TokenIds tokens;
  if (model.contains("vocab")) {
    const JsonFields vocab = model.section("vocab");
    for (const auto& [token, id] : vocab.object().items()) {
      TESSERA_CHECK(
          id.is_number_integer(),
          "{}: the id of token '{}' is {}, not an integer",
          vocab.origin(),
          token,
          runtime::show_json(id));
      tokens.emplace_back(token, id.get<std::int64_t>());
    }
  } else {
    const fs::path path = folder / "vocab.txt";
    const Vocabulary listed = Vocabulary::from_vocab_file(path);
    for (std::uint32_t id = 0; id < listed.size(); ++id) {
      tokens.emplace_back(listed.token(id), id);
    }
  }
  const auto listed_size = static_cast<std::int64_t>(tokens.size());
  std::copy_if(
      added.begin(),
      added.end(),
      std::back_inserter(tokens),
      [listed_size](const auto& token) { return token.second >= listed_size; });
  const std::string origin =
      "the vocabulary of " + origin_of_vocabulary(folder, model);
  Vocabulary vocabulary(std::move(tokens), origin);
  for (std::uint32_t id = 0; id < vocabulary.size(); ++id) {
    TESSERA_CHECK(
        !vocabulary.token(id).empty(),
        "{}: no token, or an empty one, has the id {}; ids must be 0 .. size - 1, each used once",
        origin,
        id);
  }
  return vocabulary;
}

} // namespace

BertTokenizer BertTokenizer::from_folder(const fs::path& folder) {
  TESSERA_CHECK(
      fs::is_directory(folder),
      "the model folder {} does not exist; give the path of a Hugging Face model's folder, e.g. one that `hf download NAME --local-dir FOLDER` made",
      folder);
  const auto config = JsonFields::from_file(folder / "tokenizer_config.json");
  const auto tokenizer = JsonFields::from_file(folder / "tokenizer.json");
  check_is_bert(config, tokenizer);
  const JsonFields model = tokenizer.section("model");

  BertTokenizerOptions options;
  options.text = text_options(config, tokenizer);
  WordPieceOptions& wordpiece = options.wordpiece;
  wordpiece.unk_token = token_name(config, "unk_token", wordpiece.unk_token);
  wordpiece.continuing_prefix =
      model.get_or("continuing_subword_prefix", wordpiece.continuing_prefix);
  wordpiece.max_characters_per_word = model.get_or(
      "max_input_chars_per_word", wordpiece.max_characters_per_word);
  options.cls_token = token_name(config, "cls_token", options.cls_token);
  options.sep_token = token_name(config, "sep_token", options.sep_token);
  options.pad_token = token_name(config, "pad_token", options.pad_token);
  options.whole_tokens = {token_name(config, "mask_token", "[MASK]")};
  const TokenIds added = added_tokens(config, tokenizer);
  for (const auto& [token, id] : added) {
    options.whole_tokens.push_back(token);
  }
  // "No limit" is written as 1e30.
  const auto length = config.get_or<double>("model_max_length", 0);
  if (length >= 1 && length < 1e9) {
    options.model_max_length = static_cast<std::int64_t>(length);
  }
  Vocabulary vocabulary = read_vocabulary(folder, model, added);
  check_known(config, vocabulary, origin_of_vocabulary(folder, model));
  try {
    return {std::move(vocabulary), std::move(options)};
  } catch (const Error& error) {
    TESSERA_FAIL("{}: {}", origin_of_vocabulary(folder, model), error.what());
  }
}

} // namespace tessera::zoo
