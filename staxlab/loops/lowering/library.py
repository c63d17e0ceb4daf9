"""Operators that are library calls by design: large matrix products, convolutions, sorting (Section 6.1).

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
        # convolutions and resampling whose gathers a library does better; pools with wide windows
        "convolution _convolution mkldnn_convolution cudnn_convolution convolution_overrideable "
        "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d "
        "adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d grid_sampler_2d grid_sampler_3d "
        # recurrent cells
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell mkldnn_rnn_layer _cudnn_rnn lstm.input gru.input "
        # order
        "sort sort.stable argsort argsort.stable topk kthvalue median median.dim nanmedian nanmedian.dim mode "
        "searchsorted.Tensor searchsorted.Scalar bucketize.Tensor bucketize.Scalar msort "
        # transforms and linear algebra
        "_fft_c2c _fft_r2c _fft_c2r linalg_qr linalg_eig linalg_eigvals _linalg_eigh _linalg_svd linalg_lu "
        "linalg_lu_factor_ex "
        "linalg_inv_ex linalg_solve_triangular linalg_cholesky_ex linalg_ldl_factor_ex linalg_lstsq _linalg_det "
        "_linalg_slogdet _linalg_solve_ex linalg_matrix_exp "
        "geqrf ormqr linalg_householder_product linalg_lu_solve linalg_ldl_solve linalg_pinv.atol_rtol_tensor cholesky "
        "linalg_eigvalsh linalg_vander cholesky_solve cholesky_inverse triangular_solve lu_unpack "
        # what only raises
        "_linalg_check_errors _assert_async _assert_async.msg "
        # scattered writes: those that the rules of :mod:`.scatters` decline
        "scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add scatter_reduce.two "
        "index_put index_add "
        "index_copy index_fill.int_Scalar index_fill.int_Tensor index_reduce masked_scatter put histc bincount "
        "as_strided_scatter "
        "embedding_bag _embedding_bag_forward_only segment_reduce"
    )
)

# What the engine runs on the way back: the adjoints of the above, and those whose sums a loop cannot write in the order
# eager execution has (:mod:`.adjoint_windows` and :mod:`.scatters` have rules for the cases of some).
LIBRARY.update(
    overloads(
        # products
        "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_fused_attention_overrideable_backward _flash_attention_backward "
        "_efficient_attention_backward _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention_backward _cudnn_attention_backward "
        "linear_backward mkldnn_linear_backward "
        "_cdist_backward _pdist_backward "
        # convolutions, pooling windows and resampling
        "convolution_backward convolution_backward_overrideable conv_tbc_backward "
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward mkldnn_max_pool2d_backward "
        "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
        "adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
        "fractional_max_pool2d_backward fractional_max_pool3d_backward "
        "grid_sampler_2d_backward grid_sampler_3d_backward cudnn_grid_sampler_backward "
        "_grid_sampler_2d_cpu_fallback_backward cudnn_affine_grid_generator_backward "
        "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
        "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward "
        "upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward "
        "upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward "
        "_upsample_lanczos2d_aa_backward unfold_backward "
        "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
        "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward "
        # normalisations and attention of vendors' libraries
        "cudnn_batch_norm_backward miopen_batch_norm_backward native_batch_norm_backward batch_norm_backward "
        "native_group_norm_backward _weight_norm_interface_backward _masked_softmax_backward "
        # forward passes that keep something for these
        "fractional_max_pool3d max_unpool2d max_unpool3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
        # recurrent cells
        "_thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward "
        "_thnn_differentiable_lstm_cell_backward _thnn_differentiable_gru_cell_backward "
        "mkldnn_rnn_layer_backward _cudnn_rnn_backward miopen_rnn_backward "
        # losses over alignments and margins
        "_ctc_loss_backward _ctc_loss_backward.Tensor multi_margin_loss_backward multilabel_margin_loss_backward "
        # scattered writes
        "embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward "
        "_embedding_bag_per_sample_weights_backward _embedding_bag masked_scatter_backward _segment_reduce_backward "
        "col2im "
        # of complex numbers, or of a number by subscripts
        "slice_backward select_backward diagonal_backward index_select gather "
        # derivatives of gamma beyond the second
        "polygamma "
        # of transforms of real numbers, whose spectra are complex
        "view_as_real view_as_complex _conj"
    )
)
