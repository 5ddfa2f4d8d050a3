/// A recipe: one YAML file that describes one run completely, read into plain structs.
///
/// The structs below mirror the file's blocks and keys: `training.seq_length` in YAML is
/// `recipe.training.seq_length` here. Defaults, ranges and help are in the field table
/// (`engine/recipe/fields.h`), one row per key; docs/recipe.md is printed from it.
///
/// `resolve_recipe` is the only way to get one: it reads the file, applies --set and --ranks, fills
/// in defaults and derived values, and checks everything. So every `Recipe` satisfies the ranges in
/// the table and the cross-field rules of `engine/recipe/resolve.cpp`
/// (heads divide the width, global batch = micro batch * accumulation * ranks, ...).
///
/// Errors   RecipeErrors: all problems, one line each: where (file:line, --set or --ranks), what
///          was expected and found, what to do.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "engine/model/shape.h"
#include "engine/recipe/adapter_keys.h"
#include "engine/recipe/bad_steps_keys.h"
#include "engine/recipe/choices.h"
#include "engine/recipe/compression_keys.h"
#include "engine/recipe/diloco_keys.h"
#include "engine/recipe/distillation_keys.h"
#include "engine/recipe/hook_keys.h"
#include "engine/recipe/lists.h"
#include "engine/recipe/moe_keys.h"
#include "engine/recipe/mtp_keys.h"
#include "engine/recipe/optimizer_keys.h"
#include "engine/recipe/preference_keys.h"
#include "engine/schedule/order.h"
#include "optim/average_options.h"
#include "optim/loss_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "sharding/zero/placement.h"

namespace sherd::engine {

/// Steps first..last, counted from 1, both included.
struct StepRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  bool operator==(const StepRange&) const = default;
};

struct Recipe {
  struct Run {
    std::string name;
    std::string output_dir;
    std::uint64_t seed = 0;
    DeviceChoice device = DeviceChoice::kAuto;
    bool share_device = false;  ///< several ranks on one GPU
    bool deterministic = true;  ///< on GPUs: bit-identical results in every run
    bool cuda_graphs = false;
    std::int64_t num_threads = 0;   ///< compute threads per rank; 0 = cores / ranks, at least one
    std::int64_t peer_timeout = 0;  ///< seconds
  } run;

  struct Model {
    std::string from;  ///< a Hugging Face folder; empty: the keys below alone
    std::int64_t num_layers = 0, hidden_size = 0;
    std::int64_t num_attention_heads = 0, num_kv_heads = 0;
    std::int64_t ffn_hidden_size = 0;
    std::int64_t vocab_size = 0;
    std::int64_t max_seq_length = 0;
    NormChoice norm = NormChoice::kRmsNorm;
    PositionChoice positions = PositionChoice::kRope;
    ActivationChoice activation = ActivationChoice::kSwiglu;
    bool bias = false;
    bool tie_embeddings = false;
    double dropout = 0;
    double rope_theta = 0;
    double norm_eps = 0;
    double init_std = 0;
    std::int64_t head_width = 0;
    BlockForm block = BlockForm::kSequential;
    NormPlacement norm_placement = NormPlacement::kPre;
    double norm_offset = 0;
    bool norm_bias = false;
    bool qkv_bias = false, output_bias = false, mlp_bias = false, head_bias = false;
    QkNorm qk_norm = QkNorm::kNone;
    /// Latent attention (engine/model/layer_shapes.h); a rank of 0: none.
    std::int64_t kv_lora_rank = 0, q_lora_rank = 0;
    std::int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
    bool attention_sinks = false;
    double attention_scale = 0;                   ///< 0: 1 / sqrt(head_width)
    double attention_softcap = 0;                 ///< 0: none
    double logits_scale = 0, logits_softcap = 0;  ///< softcap 0: none
    double embedding_scale = 0, residual_scale = 0;
    double query_growth = 0;      ///< 0: none
    std::int64_t query_step = 0;  ///< positions
    std::int64_t window = 0;      ///< 0: full attention
    std::string window_layers;    ///< '1' where a layer is windowed; repeated
    std::string rope_layers;      ///< '1' where a layer rotates queries and keys; repeated
    double rope_fraction = 0;
    RotaryScaling rope_scaling = RotaryScaling::kNone;
    double rope_factor = 0;
    std::int64_t rope_original_length = 0;
    double rope_low_freq_factor = 0, rope_high_freq_factor = 0;
    double rope_beta_fast = 0, rope_beta_slow = 0;
    bool rope_truncate = false;
    double rope_attention_factor = 0;  ///< 0: the scaling's own rule
    std::vector<double> rope_short_factors, rope_long_factors;
    double window_rope_theta = 0;
    bool window_rope_scaling = false;
    std::vector<std::string> add_special_tokens;
    std::int64_t mup_base_hidden_size = 0;  ///< 0: no muP

    model::LatentShape latent() const {
      return {.kv_rank = kv_lora_rank,
              .query_rank = q_lora_rank,
              .plain = qk_nope_head_dim,
              .rotated = qk_rope_head_dim,
              .value = v_head_dim};
    }
  } model;

  MoeKeys moe;

  AdapterKeys adapter;

  struct Data {
    std::string path;
    DataFormat format = DataFormat::kBytes;
    std::string tokenizer;         ///< a folder; empty: none
    std::string field;             ///< of lines of .jsonl
    std::int64_t token_bytes = 0;  ///< 0: by the file
    std::string validation_path;   ///< empty: the last validation_fraction of `path`
    double validation_fraction = 0;
    std::vector<DataSource> sources;  ///< empty: `path` alone
    std::vector<DataStage> stages;    ///< empty: the whole run is one
    std::vector<ValidationSet> validation_sets;
    DocumentChoice documents = DocumentChoice::kJoined;
    PackingChoice packing = PackingChoice::kBestFit;
    UnfitChoice unfit = UnfitChoice::kDrop;
    RewrittenChoice rewritten_history = RewrittenChoice::kTrainLast;
  } data;

  struct Training {
    std::int64_t seq_length = 0;
    std::int64_t global_batch_size = 0;
    std::int64_t micro_batch_size = 0;
    std::int64_t gradient_accumulation_steps = 0;
    std::int64_t max_steps = 0;                ///< 0: from num_epochs, once the data are open
    std::int64_t num_epochs = 0;               ///< 0: max_steps decides
    std::int64_t eval_interval = 0;            ///< 0: only at the end
    std::int64_t early_stopping_patience = 0;  ///< evaluations; 0: no early stopping
    std::int64_t eval_batches = 0;             ///< 0: the whole validation split
    FinalEval final_eval = FinalEval::kBatches;
    bool eval_at_start = false;
    std::vector<TaskFile> tasks;  ///< scored with each evaluation
    std::string best_by;          ///< name of a validation set; empty: the first
    TrainOnChoice train_on = TrainOnChoice::kAssistant;
    std::int64_t sample_tokens = 0;  ///< 0: no sample at the end
    std::string sample_prompt;
    double sample_temperature = 0;  ///< 0: always the most likely token
    std::int64_t sample_top_k = 0;  ///< 0: all tokens
    bool overfit_one_batch = false;
    std::int64_t weight_hash_interval = 0;  ///< 0: never compared
    double z_loss_multiplier = 0;           ///< of the output logits' z-loss; 0: none
  } training;

  struct Parallelism {
    std::int64_t data_parallel_shard_degree = 0;
    std::int64_t data_parallel_replicate_degree = 0;
    std::int64_t batch_groups = 0;
    std::int64_t pipeline_parallel_degree = 0;
    std::int64_t tensor_parallel_degree = 0;
    bool sequence_parallel = false;
    std::int64_t context_parallel_degree = 0;
    ContextMethod context_parallel_method = ContextMethod::kUlysses;
    std::int64_t expert_parallel_degree = 0;
    SumOrderChoice sum_order = SumOrderChoice::kRank;
    schedule::Order pipeline_schedule = schedule::Order::k1F1B;
    std::int64_t pipeline_chunks_per_rank = 0;
    std::vector<double> pipeline_layers_per_chunk;  ///< empty: divided by estimated time
    HierarchicalChoice hierarchical = HierarchicalChoice::kAuto;
    std::int64_t parameter_servers = 0;
    std::int64_t publish_delay = 0;  ///< steps
  } parallelism;

  struct ZeroOptimization {
    std::int64_t stage = 0;
    std::int64_t prefetch_depth = 0;
    bool reshard_after_forward = false;
    GradSync grad_sync = GradSync::kBoundary;
    bool shard_optimizer_over_replicas = false;
    OffloadDevice offload_optimizer = OffloadDevice::kNone;
    OffloadDevice offload_param = OffloadDevice::kNone;
    OffloadDevice offload_update = OffloadDevice::kNone;  ///< whose cores update
    std::string offload_path;                             ///< a directory
    std::int64_t offload_buffer_mib = 0;                  ///< staging memory of a rank
  } zero_optimization;

  struct MixedPrecision {
    FloatType param_dtype = FloatType::kF32;
    GatherType gather_dtype = GatherType::kParamDType;
    ReduceType reduce_dtype = ReduceType::kF32;
    FloatType grad_accum_dtype = FloatType::kF32;
    ReplicaReduceType replica_reduce_dtype = ReplicaReduceType::kGradAccumDType;
    FloatType optimizer_state_dtype = FloatType::kF32;
    bool stochastic_rounding = false;
    bool allow_tf32 = false;  ///< GPUs: f32 matmuls with 10 bits of mantissa
  } mixed_precision;

  LossScaling loss_scaling;

  struct ActivationCheckpointing {
    Recompute mode = Recompute::kNone;
    OffloadDevice offload = OffloadDevice::kNone;  ///< where the blocks' inputs wait
  } activation_checkpointing;

  OptimizerKeys optimizer;

  struct LrScheduler {
    optim::ScheduleType type = optim::ScheduleType::kConstant;
    double warmup_ratio = 0;  ///< of max_steps
    std::int64_t warmup_steps = 0;
    std::int64_t decay_steps = 0;
    double min_lr_ratio = 0;
    optim::DecayShape wsd_decay_shape = optim::DecayShape::kLinear;
    double wsd_decay_ratio = 0;         ///< of decay_steps
    std::int64_t wsd_decay_tokens = 0;  ///< 0: the ratio decides
    std::int64_t wsd_decay_steps = 0;
    optim::BatchSizeScaling batch_size_scaling = optim::BatchSizeScaling::kNone;
  } lr_scheduler;

  struct GradientClipping {
    double max_norm = 0;  ///< 0: off
  } gradient_clipping;

  BadStepsKeys bad_steps;

  /// An average of the weights: optim/average.h.
  struct Averages {
    AverageType type = AverageType::kNone;
    double decay = 0;
    std::int64_t start_step = 0, interval = 0;
    bool evaluate = false;
  } averages;

  struct Checkpoint {
    std::string resume;  ///< "auto", "never", or a checkpoint's folder
    std::string init_from;
    std::int64_t interval = 0;  ///< 0: none are saved
    bool async = true;
    std::int64_t staging_mib = 0;  ///< 0: everything that a rank saves
    std::int64_t keep_last = 0;
    std::int64_t keep_every = 0;
    std::int64_t keep_best = 0;
    std::int64_t max_failed_saves = 0;  ///< in a row; 0: any number
    bool on_interrupt = false;
    std::int64_t stop_deadline = 0;  ///< seconds
    double max_minutes = 0;          ///< 0: no limit

    bool saves() const { return interval > 0 || on_interrupt || max_minutes > 0; }
  } checkpoint;

  struct Memory {
    /// A size (engine/report/byte_size.h). Empty: this machine's memory.
    std::string device_memory;
    std::string server_memory;  ///< of a parameter server. Empty: device_memory
    OnExceed on_exceed = OnExceed::kAbort;
  } memory;

  struct Metrics {
    std::int64_t log_interval = 0;
    std::optional<StepRange> trace_steps;
    bool tensorboard = true;
    bool source_losses = false;  ///< the training loss of each source
    bool log_max_attention_logit = false;
  } metrics;

  HookKeys hooks;
  PreferenceKeys preference;
  DistillationKeys distillation;
  DilocoKeys diloco;
  PowerSgdKeys powersgd;
  DgcKeys dgc;
  MtpKeys mtp;

  /// Parts into which ranks divide a batch. Ranks that hold parts of one model copy share a batch
  /// part.
  std::int64_t data_degree() const {
    return parallelism.data_parallel_shard_degree * parallelism.data_parallel_replicate_degree;
  }
  /// Ranks that compute one part of the batch together: each has a part of the model or of the
  /// sequences.
  std::int64_t model_ranks() const {
    return parallelism.pipeline_parallel_degree * parallelism.tensor_parallel_degree *
           parallelism.context_parallel_degree;
  }
  std::int64_t tokens_per_step() const { return training.global_batch_size * training.seq_length; }
  /// Ranks that compute; parameter servers don't.
  std::int64_t num_workers() const { return data_degree() * model_ranks(); }
  std::int64_t world_size() const { return num_workers() + parallelism.parameter_servers; }
  optim::LrSchedule lr_schedule() const {
    return {.type = lr_scheduler.type,
            .lr = optimizer.lr,
            .warmup_steps = lr_scheduler.warmup_steps,
            .decay_steps = lr_scheduler.decay_steps,
            .min_lr_ratio = lr_scheduler.min_lr_ratio,
            .wsd_decay_shape = lr_scheduler.wsd_decay_shape,
            .wsd_decay_steps = lr_scheduler.wsd_decay_steps};
  }
};

/// At most this many ranks: Recipe::world_size.
inline constexpr std::int64_t kMostRanks = 65'536;

/// Of a source or validation set without a name: the path's last part, without its ending.
std::string name_of_path(const std::string& path);

/// Where one value came from.
struct Origin {
  enum class Kind {
    kDefault,
    kFile,
    kSet,
    kRanks,
    kDerived,
    kNotYet,  ///< follows from the data, which aren't open yet
  };
  Kind kind = Kind::kDefault;
  std::string text =
      "default";  ///< "default", "recipes/tiny.yaml:14", "--set", "--ranks", "derived"
  /// Set by the user, not by a rule.
  bool is_given() const {
    return kind == Kind::kFile || kind == Kind::kSet || kind == Kind::kRanks;
  }
};

/// A recipe with every value known and checked, and the origin of each.
struct ResolvedRecipe {
  Recipe values;
  std::vector<Origin> origins;       ///< one per row of the field table, in its order
  std::vector<std::string> notes{};  ///< notes for the user, one line each

  const Origin& origin(std::string_view key) const;
  /// The whole recipe as YAML, each line with its origin as a comment. Resolves to the same values.
  /// Keys that are unknown until the data are open are comments.
  std::string yaml() const;
};

struct RecipeRequest {
  std::string path;                   ///< the file, as named in errors and origins
  std::optional<std::string> text;    ///< if set, used instead of the file's content
  std::vector<std::string> sets;      ///< "key=value", later ones win
  std::optional<std::int64_t> ranks;  ///< sets parallelism.data_parallel_shard_degree
  bool reads_data = true;             ///< false, as in a plan: data.path may be missing
  /// The recipe of an existing run, as stored in its checkpoints: keys without effect are no error.
  bool is_kept = false;
};

/// All problems of a recipe. `what()` has one line for each.
class RecipeErrors : public UsageError {
 public:
  explicit RecipeErrors(std::vector<std::string> lines);
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

ResolvedRecipe resolve_recipe(const RecipeRequest& request);

/// The recipe once the data are open: sets max_steps to `epoch_steps`, the steps of
/// training.num_epochs, and derives what follows from it. Without num_epochs nothing changes.
/// Errors   RecipeErrors if max_steps is set too and differs, or a rule about steps is violated.
ResolvedRecipe with_epoch_steps(const ResolvedRecipe& recipe, std::int64_t epoch_steps);

/// `recipe` as if the user had set `keys` to what `change` writes into their members; values
/// derived from others are derived again. Nothing if the result violates a range or a rule.
std::optional<ResolvedRecipe> with_changes(const ResolvedRecipe& recipe,
                                           const std::vector<std::string_view>& keys,
                                           const std::function<void(Recipe&)>& change);

}  // namespace sherd::engine
