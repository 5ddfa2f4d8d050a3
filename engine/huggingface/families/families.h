/// The groups of families, one file each.
#pragma once

#include "engine/huggingface/family.h"

namespace sherd::huggingface {

std::span<const Family> gpt2_families();
std::span<const Family> llama_families();
std::span<const Family> llama4_families();
std::span<const Family> phi_families();
std::span<const Family> gemma_families();
std::span<const Family> olmo_families();
std::span<const Family> neox_families();
std::span<const Family> stablelm_families();
std::span<const Family> starcoder_families();
std::span<const Family> cohere_families();
std::span<const Family> glm_families();
std::span<const Family> granite_families();
std::span<const Family> relu_families();
std::span<const Family> exaone_families();
std::span<const Family> expert_families();
std::span<const Family> deepseek_families();
std::span<const Family> gpt_oss_families();
std::span<const Family> shared_expert_families();

}  // namespace sherd::huggingface
