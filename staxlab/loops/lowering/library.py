"""Operators that are library calls by design: matrix products, convolutions, sorting (Section 6.1).

They belong to the basis, so they are not decomposed; at run time PyTorch's own implementation is called, which for
these is the vendor's tuned library. Listing an operator here is a statement of intent: strict mode accepts it, whereas
an operator that merely lacks a rule is refused.
"""

from __future__ import annotations

from .registry import LIBRARY, overloads

LIBRARY.update(
    overloads(
        # products
        "mm bmm addmm baddbmm addbmm addmv mv dot vdot addr _addmm_activation _int_mm ger outer linear "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_attention_math "
        "_cdist_forward _euclidean_dist _pdist_forward _trilinear "
        # convolutions, pooling windows and resampling whose gathers a library does better
        "convolution _convolution mkldnn_convolution cudnn_convolution convolution_overrideable "
        "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d "
        "adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d grid_sampler_2d grid_sampler_3d "
        # recurrent cells
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell mkldnn_rnn_layer _cudnn_rnn lstm.input gru.input "
        # order
        "sort sort.stable argsort argsort.stable topk kthvalue median median.dim nanmedian nanmedian.dim mode "
        "searchsorted.Tensor searchsorted.Scalar bucketize.Tensor bucketize.Scalar msort "
        # scans
        "cumsum cumprod cummax cummin logcumsumexp "
        # transforms and linear algebra
        "_fft_c2c _fft_r2c _fft_c2r linalg_qr linalg_eig linalg_eigvals _linalg_eigh _linalg_svd linalg_lu "
        "linalg_lu_factor_ex "
        "linalg_inv_ex linalg_solve_triangular linalg_cholesky_ex linalg_ldl_factor_ex linalg_lstsq _linalg_det "
        "_linalg_slogdet _linalg_solve_ex linalg_matrix_exp "
        "geqrf ormqr linalg_householder_product linalg_lu_solve linalg_ldl_solve linalg_pinv.atol_rtol_tensor cholesky "
        "linalg_eigvalsh linalg_vander cholesky_solve cholesky_inverse triangular_solve lu_unpack "
        # what only raises
        "_linalg_check_errors _assert_async _assert_async.msg "
        # scattered writes
        "scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add scatter_reduce.two "
        "index_put index_add "
        "index_copy index_fill.int_Scalar index_fill.int_Tensor index_reduce masked_scatter put histc bincount "
        "embedding_bag _embedding_bag_forward_only segment_reduce"
    )
)
