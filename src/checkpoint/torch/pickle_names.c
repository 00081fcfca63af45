/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names that a pickle may have: those that torch.load(weights_only=True) takes, and those of
 * DeepSpeed's own files.
 */
#include "checkpoint/torch/pickle.h"

#include <string.h>

#include "base/numbers.h"

#define STORAGE(name, type)                                                                        \
	{                                                                                          \
		"torch." name "Storage", NAME_STORAGE, type, true                                  \
	}
#define DTYPE(name, type)                                                                          \
	{                                                                                          \
		"torch." name, NAME_CONSTANT, type, true                                           \
	}
#define NAME(text, use)                                                                            \
	{                                                                                          \
		text, use, 0, false                                                                \
	}

static const struct pickle_name names[] = {
	STORAGE("Double", NVS_F64),
	STORAGE("Float", NVS_F32),
	STORAGE("Half", NVS_F16),
	STORAGE("BFloat16", NVS_BF16),
	STORAGE("Long", NVS_I64),
	STORAGE("Int", NVS_I32),
	STORAGE("Short", NVS_I16),
	STORAGE("Char", NVS_I8),
	STORAGE("Byte", NVS_U8),
	STORAGE("Bool", NVS_BOOL),
	{"torch.storage.UntypedStorage", NAME_STORAGE, NVS_U8, true},
	{"torch.UntypedStorage", NAME_STORAGE, NVS_U8, true},
	NAME("torch.ComplexFloatStorage", NAME_STORAGE),
	NAME("torch.ComplexDoubleStorage", NAME_STORAGE),
	NAME("torch.QInt8Storage", NAME_STORAGE),
	NAME("torch.QUInt8Storage", NAME_STORAGE),
	NAME("torch.QInt32Storage", NAME_STORAGE),
	NAME("torch.QUInt4x2Storage", NAME_STORAGE),
	NAME("torch.QUInt2x4Storage", NAME_STORAGE),
	DTYPE("float64", NVS_F64),
	DTYPE("float32", NVS_F32),
	DTYPE("float16", NVS_F16),
	DTYPE("bfloat16", NVS_BF16),
	DTYPE("int64", NVS_I64),
	DTYPE("int32", NVS_I32),
	DTYPE("int16", NVS_I16),
	DTYPE("int8", NVS_I8),
	DTYPE("uint64", NVS_U64),
	DTYPE("uint32", NVS_U32),
	DTYPE("uint16", NVS_U16),
	DTYPE("uint8", NVS_U8),
	DTYPE("bool", NVS_BOOL),
	DTYPE("float8_e4m3fn", NVS_F8_E4M3),
	DTYPE("float8_e5m2", NVS_F8_E5M2),
	/* Types that nvswap has not. */
	NAME("torch.complex32", NAME_CONSTANT),
	NAME("torch.complex64", NAME_CONSTANT),
	NAME("torch.complex128", NAME_CONSTANT),
	NAME("torch.float8_e4m3fnuz", NAME_CONSTANT),
	NAME("torch.float8_e5m2fnuz", NAME_CONSTANT),
	NAME("torch.float8_e8m0fnu", NAME_CONSTANT),
	NAME("torch.float4_e2m1fn_x2", NAME_CONSTANT),
	NAME("torch.qint8", NAME_CONSTANT),
	NAME("torch.quint8", NAME_CONSTANT),
	NAME("torch.qint32", NAME_CONSTANT),
	NAME("torch.per_tensor_affine", NAME_CONSTANT),
	NAME("torch.per_tensor_symmetric", NAME_CONSTANT),
	NAME("torch.per_channel_affine", NAME_CONSTANT),
	NAME("torch.per_channel_symmetric", NAME_CONSTANT),
	NAME("torch.per_channel_affine_float_qparams", NAME_CONSTANT),
	NAME("torch._utils._rebuild_tensor", NAME_TENSOR),
	NAME("torch._utils._rebuild_tensor_v2", NAME_TENSOR),
	NAME("torch._utils._rebuild_tensor_v3", NAME_TENSOR),
	NAME("torch._utils._rebuild_qtensor", NAME_UNREAD),
	NAME("torch._utils._rebuild_sparse_tensor", NAME_UNREAD),
	NAME("torch._utils._rebuild_nested_tensor", NAME_UNREAD),
	NAME("torch._utils._rebuild_meta_tensor_no_storage", NAME_UNREAD),
	NAME("torch._utils._rebuild_wrapper_subclass", NAME_UNREAD),
	NAME("torch._utils._rebuild_parameter", NAME_PARAMETER),
	NAME("torch._utils._rebuild_parameter_with_state", NAME_PARAMETER),
	/* Tensors with attributes, as DeepSpeed's flat groups have. */
	NAME("torch._tensor._rebuild_from_type_v2", NAME_FROM_TYPE),
	NAME("torch.Tensor", NAME_CONSTANT),
	NAME("collections.OrderedDict", NAME_DICT),
	NAME("collections.defaultdict", NAME_DICT),
	NAME("torch.Size", NAME_TUPLE),
	NAME("torch.device", NAME_INSTANCE),
	NAME("torch.serialization._get_layout", NAME_INSTANCE),
	/* Values of Python, whatever they hold; bytes are made of text by encode. */
	NAME("builtins.set", NAME_INSTANCE),
	NAME("__builtin__.set", NAME_INSTANCE),
	NAME("builtins.frozenset", NAME_INSTANCE),
	NAME("__builtin__.frozenset", NAME_INSTANCE),
	NAME("builtins.bytes", NAME_INSTANCE),
	NAME("__builtin__.bytes", NAME_INSTANCE),
	NAME("builtins.bytearray", NAME_INSTANCE),
	NAME("__builtin__.bytearray", NAME_INSTANCE),
	NAME("_codecs.encode", NAME_INSTANCE),
	NAME("builtins.complex", NAME_INSTANCE),
	NAME("__builtin__.complex", NAME_INSTANCE),
	NAME("collections.Counter", NAME_INSTANCE),
	/* The member of an enumeration, as Python 3.11 and later save it. */
	NAME("builtins.getattr", NAME_INSTANCE),
	NAME("__builtin__.getattr", NAME_INSTANCE),
	NAME("builtins.dict", NAME_DICT),
	NAME("__builtin__.dict", NAME_DICT),
	NAME("argparse.Namespace", NAME_INSTANCE),
	NAME("deepspeed.runtime.fp16.loss_scaler.LossScaler", NAME_INSTANCE),
	NAME("deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler", NAME_INSTANCE),
	NAME("deepspeed.runtime.zero.config.ZeroStageEnum", NAME_INSTANCE),
	NAME("deepspeed.utils.tensor_fragment.fragment_address", NAME_INSTANCE),
};

const struct pickle_name *pickle_name_find(const char *text)
{
	for (size_t i = 0; i < COUNT_OF(names); i++)
		if (!strcmp(names[i].text, text))
			return &names[i];
	return NULL;
}

const char *pickle_name_of(enum name_use use, enum nvs_dtype dtype)
{
	for (size_t i = 0; i < COUNT_OF(names); i++)
		if (names[i].use == use && names[i].has_dtype && names[i].dtype == dtype)
			return names[i].text;
	return NULL;
}
