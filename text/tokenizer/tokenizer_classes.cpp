// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/tokenizer_classes.h"

#include <algorithm>

namespace tessera::text {

namespace {

using NamedTokens = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kSaveAsJson =
    "let transformers save it as tokenizer.json (AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)) and use that";
constexpr const char* kTokenizeElsewhere =
    "tokenize the texts with that class in Python and train on the token files (docs/language.md), or name the class whose ids are wanted in tokenizer_config.json, such as \"BertTokenizer\"";

constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

NamedTokens roberta_tokens() {
  return {
      {"bos_token", "<s>"},
      {"eos_token", "</s>"},
      {"unk_token", "<unk>"},
      {"sep_token", "</s>"},
      {"pad_token", "<pad>"},
      {"cls_token", "<s>"},
      {"mask_token", "<mask>"}};
}

NamedTokens gpt2_tokens() {
  return {
      {"bos_token", "<|endoftext|>"},
      {"eos_token", "<|endoftext|>"},
      {"unk_token", "<|endoftext|>"}};
}

constexpr const char* kClsSep = "cls_token $A sep_token";
constexpr const char* kClsSepPair = "cls_token $A sep_token $B:1 sep_token:1";
constexpr const char* kRobertaPair =
    "cls_token $A sep_token sep_token $B sep_token";

TokenizerClass refused_class(
    std::vector<std::string> names,
    std::vector<std::string> model_types,
    std::string refusal,
    std::string remedy = kSaveAsJson) {
  TokenizerClass row;
  row.names = std::move(names);
  row.model_types = std::move(model_types);
  row.refusal = std::move(refusal);
  row.remedy = std::move(remedy);
  return row;
}

TokenizerClass bert_class() {
  TokenizerClass row;
  row.names = {
      "BertTokenizer",
      "DistilBertTokenizer",
      "ElectraTokenizer",
      "ConvBertTokenizer",
      "MobileBertTokenizer",
      "SqueezeBertTokenizer",
      "RetriBertTokenizer",
      "LxmertTokenizer",
      "LayoutLMTokenizer",
      "RealmTokenizer",
      "SplinterTokenizer",
      "GLMBertTokenizer",
      "DPRReaderTokenizer",
      "DPRContextEncoderTokenizer",
      "DPRQuestionEncoderTokenizer"};
  row.model_types = {
      "bert",
      "distilbert",
      "electra",
      "convbert",
      "mobilebert",
      "squeezebert",
      "lxmert",
      "layoutlm",
      "ernie",
      "nezha",
      "megatron-bert",
      "qdqbert",
      "nomic_bert"};
  row.vocabulary = VocabularyKind::kWordPiece;
  row.special_tokens = {
      {"unk_token", "[UNK]"},
      {"sep_token", "[SEP]"},
      {"pad_token", "[PAD]"},
      {"cls_token", "[CLS]"},
      {"mask_token", "[MASK]"}};
  row.single = kClsSep;
  row.pair = kClsSepPair;
  return row;
}

TokenizerClass gpt2_class() {
  TokenizerClass row;
  row.names = {"GPT2Tokenizer", "CodeGenTokenizer"};
  row.model_types = {
      "gpt2", "gptj", "gpt_neo", "opt", "codegen", "phi", "gpt_bigcode"};
  row.vocabulary = VocabularyKind::kByteLevelBpe;
  row.special_tokens = gpt2_tokens();
  return row;
}

TokenizerClass roberta_class() {
  TokenizerClass row;
  row.names = {
      "RobertaTokenizer",
      "BartTokenizer",
      "LongformerTokenizer",
      "LEDTokenizer",
      "MvpTokenizer"};
  row.model_types = {
      "roberta",
      "roberta-prelayernorm",
      "longformer",
      "bart",
      "led",
      "mvp",
      "ibert",
      "data2vec-text"};
  row.vocabulary = VocabularyKind::kByteLevelBpe;
  row.special_tokens = roberta_tokens();
  row.single = kClsSep;
  row.pair = kRobertaPair;
  row.mask_strips_left = true;
  row.trims_offsets = true;
  return row;
}

TokenizerClass qwen2_class() {
  TokenizerClass row;
  row.names = {"Qwen2Tokenizer"};
  row.model_types = {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"};
  row.vocabulary = VocabularyKind::kByteLevelBpe;
  row.special_tokens = {
      {"eos_token", "<|endoftext|>"},
      {"unk_token", "<|endoftext|>"},
      {"pad_token", "<|endoftext|>"}};
  row.pattern = kQwen2Pattern;
  row.composes = true;
  return row;
}

/// Of the authors' tokenization_glm.py.
TokenizerClass glm_gpt2_class() {
  TokenizerClass row = gpt2_class();
  row.names = {"GLMGPT2Tokenizer", "GLMRobertaTokenizer"};
  row.model_types.clear();
  row.special_tokens.emplace_back("cls_token", "[CLS]");
  row.special_tokens.emplace_back("mask_token", "[MASK]");
  row.single = "cls_token $A eos_token";
  row.pair = "cls_token $A $B eos_token";
  return row;
}

TokenizerClass llama_class() {
  TokenizerClass row;
  row.names = {"LlamaTokenizer", "CodeLlamaTokenizer"};
  row.model_types = {"llama", "code_llama", "mistral", "mixtral"};
  row.vocabulary = VocabularyKind::kSentencePiece;
  row.special_tokens = {
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  row.adds_bos_token = true;
  row.has_legacy_prefix = true;
  return row;
}

TokenizerClass gemma_class() {
  TokenizerClass row;
  row.names = {"GemmaTokenizer"};
  row.model_types = {"gemma", "gemma2", "gemma3", "gemma3_text"};
  row.vocabulary = VocabularyKind::kSentencePiece;
  row.special_tokens = {
      {"bos_token", "<bos>"},
      {"eos_token", "<eos>"},
      {"unk_token", "<unk>"},
      {"pad_token", "<pad>"}};
  row.adds_bos_token = true;
  return row;
}

TokenizerClass t5_class() {
  TokenizerClass row;
  row.names = {"T5Tokenizer", "MT5Tokenizer"};
  row.model_types = {"t5", "mt5", "umt5", "longt5", "switch_transformers"};
  row.vocabulary = VocabularyKind::kSentencePiece;
  row.word_spaces = WordSpaces::kWhiteSpace;
  row.special_tokens = {
      {"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
  row.adds_eos_token = true;
  row.second_type = 0;
  row.has_extra_ids = true;
  return row;
}

TokenizerClass xlm_roberta_class() {
  TokenizerClass row;
  row.names = {"XLMRobertaTokenizer"};
  row.model_types = {"xlm-roberta", "xlm-roberta-xl", "xmod"};
  row.vocabulary = VocabularyKind::kSentencePiece;
  row.word_spaces = WordSpaces::kMetaspace;
  row.special_tokens = roberta_tokens();
  row.single = kClsSep;
  row.pair = kRobertaPair;
  row.mask_strips_left = true;
  row.renumbering = {{"<s>", "<pad>", "</s>", "<unk>"}, 3};
  row.last_tokens = {"<mask>"};
  return row;
}

TokenizerClass camembert_class() {
  TokenizerClass row = xlm_roberta_class();
  row.names = {"CamembertTokenizer"};
  row.model_types = {"camembert"};
  row.renumbering = {
      {"<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"}, 1};
  return row;
}

TokenizerClass albert_class() {
  TokenizerClass row;
  row.names = {"AlbertTokenizer"};
  row.model_types = {"albert"};
  row.vocabulary = VocabularyKind::kSentencePiece;
  row.word_spaces = WordSpaces::kWhiteSpace;
  row.special_tokens = {
      {"bos_token", "[CLS]"},
      {"eos_token", "[SEP]"},
      {"unk_token", "<unk>"},
      {"sep_token", "[SEP]"},
      {"pad_token", "<pad>"},
      {"cls_token", "[CLS]"},
      {"mask_token", "[MASK]"}};
  row.single = kClsSep;
  row.pair = kClsSepPair;
  row.mask_strips_left = true;
  row.has_albert_normalizer = true;
  return row;
}

TokenizerClass pegasus_class() {
  TokenizerClass row;
  row.names = {"PegasusTokenizer"};
  row.model_types = {"pegasus", "pegasus_x", "bigbird_pegasus"};
  row.vocabulary = VocabularyKind::kSentencePiece;
  row.word_spaces = WordSpaces::kWhiteSpace;
  row.special_tokens = {
      {"eos_token", "</s>"},
      {"unk_token", "<unk>"},
      {"pad_token", "<pad>"},
      {"mask_token", "<mask_2>"}};
  row.single = "$A eos_token";
  row.pair = "$A $B eos_token";
  row.refuses_added_tokens = true;
  row.renumbering = {{"<pad>", "</s>", "<mask_1>", "<mask_2>"}, 2};
  constexpr int kOffset = 103;
  for (int i = 2; i < kOffset; ++i) {
    row.renumbering.first.push_back("<unk_" + std::to_string(i) + ">");
  }
  return row;
}

/// Of the authors' tokenization_chatglm.py; the role tokens are ChatGLM3's.
TokenizerClass chatglm_class() {
  TokenizerClass row;
  row.names = {"ChatGLMTokenizer"};
  row.model_types = {"chatglm"};
  row.vocabulary = VocabularyKind::kSentencePiece;
  row.special_tokens = {
      {"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<unk>"}};
  row.single = "[gMASK] sop $A";
  row.pair = "[gMASK] sop $A $B eos_token";
  row.pads_left = true;
  row.last_tokens = {
      "[MASK]",
      "[gMASK]",
      "[sMASK]",
      "sop",
      "eop",
      "<|system|>",
      "<|user|>",
      "<|assistant|>",
      "<|observation|>"};
  return row;
}

std::vector<TokenizerClass> make_tokenizer_classes() {
  std::vector<TokenizerClass> rows{
      bert_class(),
      gpt2_class(),
      roberta_class(),
      qwen2_class(),
      glm_gpt2_class(),
      llama_class(),
      gemma_class(),
      t5_class(),
      xlm_roberta_class(),
      camembert_class(),
      albert_class(),
      pegasus_class(),
      chatglm_class()};
  TokenizerClass roformer = refused_class(
      {"RoFormerTokenizer"},
      {"roformer"},
      "divides Chinese text into words with jieba",
      kTokenizeElsewhere);
  roformer.refuses_tokenizer_json = true;
  rows.push_back(std::move(roformer));
  for (
      TokenizerClass& row : std::vector<TokenizerClass>{
          refused_class(
              {"CpmTokenizer", "CPM1Tokenizer", "CPM2Tokenizer"},
              {"cpm"},
              "divides Chinese text into words with jieba",
              kTokenizeElsewhere),
          refused_class(
              {"BertJapaneseTokenizer"},
              {"bert-japanese"},
              "divides Japanese text into words with MeCab, Sudachi or Juman",
              kTokenizeElsewhere),
          refused_class(
              {"CpmAntTokenizer",      "CpmBeeTokenizer",
               "RoCBertTokenizer",     "TapasTokenizer",
               "EsmTokenizer",         "BertweetTokenizer",
               "PhobertTokenizer",     "BartphoTokenizer",
               "CTRLTokenizer",        "XLMTokenizer",
               "FlaubertTokenizer",    "FSMTTokenizer",
               "BioGptTokenizer",      "BlenderbotSmallTokenizer",
               "LukeTokenizer",        "M2M100Tokenizer",
               "MarianTokenizer",      "SpeechT5Tokenizer",
               "Speech2TextTokenizer", "PLBartTokenizer",
               "ErnieMTokenizer",      "GPTSw3Tokenizer",
               "ProphetNetTokenizer",  "XLMProphetNetTokenizer",
               "ChatGLM4Tokenizer",    "GLMChineseTokenizer"},
              {"bertweet", "phobert", "ctrl", "xlm", "m2m_100", "marian"},
              "divides or numbers texts in a way of its own",
              kTokenizeElsewhere),
          refused_class(
              {"MBartTokenizer",
               "MBart50Tokenizer",
               "NllbTokenizer",
               "SeamlessM4TTokenizer"},
              {"mbart", "nllb", "nllb-moe"},
              "numbers the pieces of its model anew and adds tokens of languages"),
          refused_class(
              {"BarthezTokenizer",
               "XGLMTokenizer",
               "LayoutXLMTokenizer",
               "RemBertTokenizer",
               "UdopTokenizer"},
              {"barthez", "xglm", "rembert", "udop"},
              "numbers the pieces of its model anew"),
          refused_class(
              {"XLNetTokenizer",
               "BigBirdTokenizer",
               "FNetTokenizer",
               "DebertaV2Tokenizer",
               "ReformerTokenizer",
               "BertGenerationTokenizer",
               "CohereTokenizer"},
              {"xlnet", "big_bird", "fnet", "deberta-v2", "reformer"},
              "rewrites texts or adds tokens to them in a way of its own"),
          refused_class(
              {"MPNetTokenizer", "FunnelTokenizer", "HerbertTokenizer"},
              {"mpnet", "funnel", "herbert"},
              "has other special tokens than a BertTokenizer"),
          refused_class(
              {"CLIPTokenizer",
               "OpenAIGPTTokenizer",
               "WhisperTokenizer",
               "DebertaTokenizer",
               "BlenderbotTokenizer",
               "LayoutLMv3Tokenizer",
               "MarkupLMTokenizer",
               "GPTNeoXTokenizer"},
              {"clip", "openai-gpt", "whisper", "deberta", "blenderbot"},
              "divides texts or adds tokens to them in another way than a GPT2Tokenizer")}) {
    rows.push_back(std::move(row));
  }
  return rows;
}

const std::vector<TokenizerClass>& tokenizer_classes() {
  static const std::vector<TokenizerClass> rows = make_tokenizer_classes();
  return rows;
}

const TokenizerClass* find_tokenizer_class(
    std::string_view name,
    std::vector<std::string> TokenizerClass::*names) {
  for (const TokenizerClass& row : tokenizer_classes()) {
    const std::vector<std::string>& all = row.*names;
    if (std::find(all.begin(), all.end(), name) != all.end()) {
      return &row;
    }
  }
  return nullptr;
}

} // namespace

const TokenizerClass* tokenizer_class(std::string_view name) {
  constexpr std::string_view kFast = "Fast";
  if (name.ends_with(kFast)) {
    name.remove_suffix(kFast.size());
  }
  return find_tokenizer_class(name, &TokenizerClass::names);
}

const TokenizerClass* tokenizer_class_of_model(std::string_view model_type) {
  return find_tokenizer_class(model_type, &TokenizerClass::model_types);
}

const TokenizerClass& default_tokenizer_class(VocabularyKind vocabulary) {
  if (vocabulary == VocabularyKind::kSentencePiece) {
    static const TokenizerClass plain = [] {
      TokenizerClass row;
      row.vocabulary = VocabularyKind::kSentencePiece;
      return row;
    }();
    return plain;
  }
  return *tokenizer_class(
      vocabulary == VocabularyKind::kWordPiece ? "BertTokenizer"
                                               : "GPT2Tokenizer");
}

bool is_generic_tokenizer_class(std::string_view name) {
  return name.empty() || name == "PreTrainedTokenizer" ||
         name == "PreTrainedTokenizerFast" || name == "TokenizersBackend" ||
         name == "PythonBackend" || name == "SentencePieceBackend";
}

} // namespace tessera::text
